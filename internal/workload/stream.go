package workload

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

// stream is a sequence of random draws for one purpose. Its draws are the same
// on every architecture: logarithm and exponential are our own, because the
// library's differ between processors in the last bit, and no product is fused
// with a sum.
type stream struct {
	source *rand.PCG
	spare  float64 // second value of the polar method
	spared bool
}

// seeder derives independent streams from the workload's seed and the repeat.
type seeder struct {
	seed   int64
	repeat int
}

// stream returns the stream for a purpose in a part of the plan.
func (s seeder) stream(purpose string, part int) *stream {
	sum := s.sum(purpose, part)
	return &stream{source: rand.NewPCG(binary.LittleEndian.Uint64(sum[:8]), binary.LittleEndian.Uint64(sum[8:16]))}
}

func (s seeder) sum(purpose string, part int) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "sbench workload v1\nseed %d\nrepeat %d\npurpose %s\npart %d\n", s.seed, s.repeat, purpose, part))
}

// uniform is in the open interval (0, 1).
func (s *stream) uniform() float64 {
	return (float64(s.source.Uint64()>>11) + 0.5) * 0x1p-53
}

// below is uniform in [0, n).
func (s *stream) below(n uint64) uint64 {
	high, _ := bits.Mul64(s.source.Uint64(), n)
	return high
}

// exponential has mean 1.
func (s *stream) exponential() float64 { return -ln(s.uniform()) }

// normal has mean 0 and deviation 1 (Marsaglia's polar method).
func (s *stream) normal() float64 {
	if s.spared {
		s.spared = false
		return s.spare
	}
	for {
		u, v := 2*s.uniform()-1, 2*s.uniform()-1
		q := float64(u*u) + float64(v*v)
		if q >= 1 || q == 0 {
			continue
		}
		f := math.Sqrt(-2 * ln(q) / q)
		s.spare, s.spared = float64(v*f), true
		return float64(u * f)
	}
}

// gamma has that shape and mean 1 (Marsaglia and Tsang, 2000).
func (s *stream) gamma(shape float64) float64 {
	k, boost := shape, 1.0
	if shape < 1 {
		// A gamma of shape a is one of shape a+1 times u^(1/a).
		k, boost = shape+1, exp(ln(s.uniform())/shape)
	}
	d := k - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := s.normal()
		t := 1 + float64(c*x)
		if t <= 0 {
			continue
		}
		v := float64(float64(t*t) * t)
		u := s.uniform()
		if ln(u) < float64(0.5*float64(x*x))+float64(d*(1-v+ln(v))) {
			return float64(float64(d*v)*boost) / shape
		}
	}
}

// ln is the natural logarithm after FreeBSD's e_log.c, for x > 0 and normal.
func ln(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
		l1    = 6.666666666666735130e-01
		l2    = 3.999999999940941908e-01
		l3    = 2.857142874366239149e-01
		l4    = 2.222219843214978396e-01
		l5    = 1.818357216161805012e-01
		l6    = 1.531383769920937332e-01
		l7    = 1.479819860511658591e-01
	)
	f, e := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f *= 2
		e--
	}
	f--
	k := float64(e)
	s := f / (2 + f)
	s2 := float64(s * s)
	s4 := float64(s2 * s2)
	odd := float64(s4 * l7)
	odd = float64(s4 * (l5 + odd))
	odd = float64(s4 * (l3 + odd))
	odd = float64(s2 * (l1 + odd))
	even := float64(s4 * l6)
	even = float64(s4 * (l4 + even))
	even = float64(s4 * (l2 + even))
	r := odd + even
	half := float64(float64(0.5*f) * f)
	return float64(k*ln2Hi) - ((half - (float64(s*(half+r)) + float64(k*ln2Lo))) - f)
}

// exp is the exponential after FreeBSD's e_exp.c, for results that are normal.
func exp(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
		log2e = 1.44269504088896338700e+00
		p1    = 1.66666666666666657415e-01
		p2    = -2.77777777770155933842e-03
		p3    = 6.61375632143793436117e-05
		p4    = -1.65339022054652515390e-06
		p5    = 4.13813679705723846039e-08
	)
	k := math.Floor(float64(log2e*x) + 0.5)
	hi := x - float64(k*ln2Hi)
	lo := float64(k * ln2Lo)
	r := hi - lo
	t := float64(r * r)
	c := float64(t * p5)
	c = float64(t * (p4 + c))
	c = float64(t * (p3 + c))
	c = float64(t * (p2 + c))
	c = float64(t * (p1 + c))
	c = r - c
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	return math.Ldexp(y, int(k))
}
