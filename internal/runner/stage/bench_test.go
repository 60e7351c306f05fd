package stage

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The benchmark prints lines of name, value and target, for docs/performance.md.
// Both sides read the same files from the page cache, in one run; each is the
// best of its rounds, because what else the machine does only ever adds.

const (
	benchFiles     = 4
	benchFileBytes = 256 << 20
)

func cpuSeconds(t testing.TB, who int) float64 {
	var r unix.Rusage
	if err := unix.Getrusage(who, &r); err != nil {
		t.Fatal(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

func BenchmarkDigest(b *testing.B) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		b.Skip("openssl is not installed")
	}
	dir := b.TempDir()
	block := make([]byte, 1<<20)
	source := rand.NewChaCha8([32]byte{1})
	var files []string
	for i := range benchFiles {
		path := filepath.Join(dir, fmt.Sprint(i))
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		for range benchFileBytes / len(block) {
			_, _ = source.Read(block)
			if _, err := f.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		f.Close()
		files = append(files, path)
	}
	ours, theirs, cores := math.MaxFloat64, math.MaxFloat64, 0.0
	for b.Loop() {
		for _, path := range files { // one file at a time
			before := cpuSeconds(b, unix.RUSAGE_CHILDREN)
			if err := exec.Command(openssl, "dgst", "-sha256", path).Run(); err != nil {
				b.Fatal(err)
			}
			theirs = min(theirs, cpuSeconds(b, unix.RUSAGE_CHILDREN)-before)
			before = cpuSeconds(b, unix.RUSAGE_SELF)
			if _, err := Digest(context.Background(), path); err != nil {
				b.Fatal(err)
			}
			ours = min(ours, cpuSeconds(b, unix.RUSAGE_SELF)-before)
		}
		before, began := cpuSeconds(b, unix.RUSAGE_SELF), time.Now()
		if _, err := Digest(context.Background(), dir); err != nil {
			b.Fatal(err)
		}
		cores = max(cores, (cpuSeconds(b, unix.RUSAGE_SELF)-before)/time.Since(began).Seconds())
	}
	b.ReportMetric(float64(benchFileBytes)/ours/1e9, "GB/CPU-s")
	fmt.Printf("\ndigest_cpu_vs_openssl %.3f >=0.75\n", theirs/ours)
	fmt.Printf("digest_cores_used_of_%d %.2f >=%.2f\n", runtime.GOMAXPROCS(0), cores, 0.9*float64(runtime.GOMAXPROCS(0)))
}
