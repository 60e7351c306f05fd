package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Noise makes engines differ as real ones do: the time of every step is
// multiplied by factors drawn once per run, night and node, and once per step.
// Each is exp(sigma·z) with z standard normal from the seed and the name, so
// the same run, night and node are always equally slow.
type Noise struct {
	Run, Night, Node, Step float64 // sigmas
}

// ParseNoise reads `run=0.01,night=0.02,node=0.02,step=0.05`; what is left out
// is 0.
func ParseNoise(text string) (Noise, error) {
	var n Noise
	for item := range strings.SplitSeq(text, ",") {
		if item == "" {
			continue
		}
		name, value, _ := strings.Cut(item, "=")
		field, known := map[string]*float64{"run": &n.Run, "night": &n.Night, "node": &n.Node, "step": &n.Step}[name]
		if !known {
			return n, fmt.Errorf("noise %q: %q is not run, night, node or step", text, name)
		}
		sigma, err := strconv.ParseFloat(value, 64)
		if err != nil || !(sigma >= 0 && sigma <= 1) {
			return n, fmt.Errorf("noise %q: %s: %q is not a number in [0, 1]", text, name, value)
		}
		*field = sigma
	}
	return n, nil
}

// Names is what the multipliers are drawn for.
type Names struct {
	Run, Night, Node string
}

// multipliers is the truth about a run's speed; it goes into the log.
type multipliers struct {
	Run   float64 `json:"run"`
	Night float64 `json:"night"`
	Node  float64 `json:"node"`
}

func (n Noise) draw(seed uint64, names Names) multipliers {
	factor := func(sigma float64, kind, name string) float64 {
		return math.Exp(sigma * normal(mixString(mixString(seed, kind), name)))
	}
	return multipliers{factor(n.Run, "run", names.Run), factor(n.Night, "night", names.Night), factor(n.Node, "node", names.Node)}
}

func (m multipliers) product() float64 { return m.Run * m.Night * m.Node }

// step is the factor of one step of a run.
func (n Noise) step(seed uint64, run string, number int64) float64 {
	if n.Step == 0 {
		return 1
	}
	return math.Exp(n.Step * normal(mix(mixString(mixString(seed, "step"), run), uint64(number))))
}

// normal turns a hash into a standard normal number (Box-Muller).
func normal(h uint64) float64 {
	u, v := 1-unit(h), unit(mix(h, 1))
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}
