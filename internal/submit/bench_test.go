package submit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// counting is a cluster that takes everything at once, so that what is measured
// is ours.
type counting struct{ submitted int64 }

func (c *counting) Submit(context.Context, string, bool) (slurm.Submission, error) {
	c.submitted++
	return slurm.Submission{Outcome: slurm.Created, JobID: c.submitted}, nil
}

func (c *counting) Find(context.Context, string, string, time.Time) (slurm.Presence, []slurm.Found, error) {
	return slurm.Gone, nil, nil
}
func (c *counting) Release(context.Context, int64) error    { return nil }
func (c *counting) Cancel(context.Context, ...string) error { return nil }
func (c *counting) Settings(context.Context) (slurm.Settings, error) {
	return slurm.Settings{MaxArraySize: 4_000_001}, nil
}

func (c *counting) Shares(context.Context) (map[string]float64, error) { return nil, nil }

func (c *counting) UpdateThrottle(context.Context, int64, int) error { return nil }

func (c *counting) Limits(context.Context, string, string, string) (slurm.Limits, error) {
	return slurm.Limits{}, nil
}

func (c *counting) Wall(context.Context, string, string, string, string) (slurm.Wall, error) {
	return slurm.Wall{}, nil
}

// BenchmarkSubmit30000 is a night: 6,000 settings of 60 checkpoints and 4 kinds of
// hardware, 5 repeats, planned, frozen, committed and released.
func BenchmarkSubmit30000(b *testing.B) {
	const settings, repeats = 6000, 5
	for b.Loop() {
		b.StopTimer()
		s := pgtest.New(b)
		dir := b.TempDir()
		st := &site.Site{
			Name: "lab", Cluster: "fake", HardwareClass: "emulated", Partitions: map[string]site.Partition{}, Hardware: map[string]site.Hardware{},
			Paths:  site.Paths{Spool: filepath.Join(dir, "spool"), Results: filepath.Join(dir, "results")},
			Limits: site.Limits{MaxArraySize: 1001, MaxSubmit: 1001, MaxQueue: 100_000, TaskMinutes: 60},
			Jobs:   site.Jobs{Exclusive: "exclusive", Memory: "0", Signal: time.Minute},
		}
		n := store.NewSweep{Name: "night", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "x"}
		for i := range settings {
			gpu := fmt.Sprintf("gpu%d", i%4)
			st.Hardware[gpu] = site.Hardware{GRES: "gpu:" + gpu, GPUsPerNode: 8}
			c := setting.Default()
			c.Model.Checkpoint.Digest = fmt.Sprintf("sha256:%064d", i%60)
			c.Hardware.GPU, c.Hardware.GPUs = gpu, 1
			c.Workload.Seed, c.Workload.Duration = int64(i), 5*time.Minute
			sum := sha256.Sum256([]byte(fmt.Sprint(i)))
			n.Settings = append(n.Settings, store.NewSetting{
				Hash: hex.EncodeToString(sum[:]), SeriesHash: hex.EncodeToString(sum[:]), CanonicalSpec: []byte("{}"), Setting: c, Repeats: repeats,
			})
		}
		if _, _, err := s.CreateSweep(b.Context(), n); err != nil {
			b.Fatal(err)
		}
		runner := filepath.Join(dir, "runner")
		if err := os.WriteFile(runner, []byte("#!/bin/sh\n"), 0o755); err != nil {
			b.Fatal(err)
		}
		slurmSide := &counting{}
		service, err := New(Config{Site: st, Store: s, Cluster: slurmSide, Runner: runner})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := service.Turn(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		open, err := s.OpenBatches(b.Context(), "lab")
		if err != nil {
			b.Fatal(err)
		}
		tasks, want := map[string]int{}, 0
		for _, o := range open {
			tasks[string(o.Shape)] += o.NTasks
		}
		for _, n := range tasks {
			want += (n + 1000) / 1001
		}
		if int(slurmSide.submitted) != want || len(open) != want {
			b.Fatalf("%d calls of sbatch, %d batches; the plan says %d", slurmSide.submitted, len(open), want)
		}
		b.ReportMetric(float64(slurmSide.submitted), "sbatch-calls")
		b.ReportMetric(float64(b.Elapsed().Seconds()), "s-beyond-sbatch")
		b.StartTimer()
	}
}
