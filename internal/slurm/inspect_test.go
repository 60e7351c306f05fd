package slurm

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFields(t *testing.T) {
	t.Parallel()
	f := fields("NodeName=gpu1 Arch=x86_64 OS=Linux 5.15 #1 SMP x=y CPUTot=96 ActiveFeatures=h100,nvlink Gres=gpu:h100:8(S:0-1) State=IDLE+DRAIN Partitions=gpu,all CfgTRES=cpu=96,gres/gpu=8 AllocTRES= Reason=bad fan State=DOWN [root@1]\n")
	want := map[string]string{
		"NodeName": "gpu1", "Arch": "x86_64", "OS": "Linux 5.15 #1 SMP", "x": "y", "CPUTot": "96", "ActiveFeatures": "h100,nvlink", "Gres": "gpu:h100:8(S:0-1)",
		"State": "IDLE+DRAIN", "Partitions": "gpu,all", "CfgTRES": "cpu=96,gres/gpu=8", "AllocTRES": "", "Reason": "bad fan",
	}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

func TestGRES(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]int{
		"(null)": {}, "gpu:h100:8(S:0-1)": {"gpu:h100": 8}, "gpu:4": {"gpu": 4}, "gpu": {"gpu": 1}, "gpu:l4": {"gpu:l4": 1},
		"gpu:h100:4(S:0),gpu:h100:4(S:1),nic:no_consume:2,shard:h100:16(S:0,1)": {"gpu:h100": 8, "nic": 2, "shard:h100": 16},
	} {
		if diff := cmp.Diff(want, gres(text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"UNLIMITED": 0, "2-00:00:00": 48 * time.Hour, "01:30:05": 90*time.Minute + 5*time.Second} {
		if got, err := span(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"soon", "1:2", "1-", "-1:00:00"} {
		if got, err := span(text); err == nil {
			t.Errorf("%s became %v", text, got)
		}
	}
}

func TestNode_Usable(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]bool{"IDLE": true, "MIXED": true, "ALLOCATED": true, "IDLE+CLOUD+POWERED_DOWN": false, "IDLE+DRAIN": false, "DOWN*": false, "IDLE*": false} {
		if got := (Node{State: state}).Usable(); got != want {
			t.Errorf("%s: %v", state, got)
		}
	}
}
