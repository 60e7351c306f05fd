package sim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultNames(t *testing.T) {
	now := time.Date(2026, 3, 1, 23, 30, 0, 5, time.FixedZone("", -2*3600))
	tests := []struct {
		name string
		env  map[string]string
		in   Names
		want Names
	}{
		{"in a job", map[string]string{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURMD_NODENAME": "gpu1"}, Names{}, Names{Run: "7.2", Night: "2026-03-02", Node: "gpu1"}},
		{"started by sbench", map[string]string{"SLURMD_NODENAME": "gpu1"}, Names{}, Names{Run: "2026-03-02T01:30:00.000000005Z", Night: "2026-03-02", Node: "gpu1"}},
		{"given", map[string]string{"SLURM_JOB_ID": "7"}, Names{Run: "a", Night: "b", Node: "c"}, Names{Run: "a", Night: "b", Node: "c"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME"} {
				t.Setenv(name, tt.env[name])
			}
			if diff := cmp.Diff(tt.want, defaultNames(tt.in, now)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
