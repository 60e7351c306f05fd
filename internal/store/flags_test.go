package store_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/lifecycle"
	"sbench/internal/pgtest"
	"sbench/internal/result"
	"sbench/internal/store"
)

// TestIngest_Flags: the first valid attempt of a setting records the engine's
// resolved flags; a later one with others, which may have been frozen before, is
// stored as a refusal that names each difference, and completes no run.
func TestIngest_Flags(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	n := sweepOf("flags", 4)
	_, runs := create(t, s, n)
	submit(t, s, batchToken, runs)
	hash := n.Settings[0].Hash
	sealed := func(run, job int64, image string, flags map[string]string) store.Sealed {
		a := attempt(run, job, lifecycle.ExitMeasured, true)
		a.SettingHash, a.SeriesHash = hash, hash
		a.StartedAt, a.EndedAt = time.Unix(100, 0).UTC(), time.Unix(200, 0).UTC()
		r := &result.Result{Attempt: a.Attempt, Valid: true, EnvVerified: true, MetricsVersion: "1", Metrics: result.Metrics{}}
		return store.Sealed{Attempt: a, Result: r, FingerprintHash: "x", ImageDigest: image, Flags: flags}
	}
	first := map[string]string{"max-num-seqs": "256", "port": "4711"}
	for i, c := range []store.Sealed{
		sealed(runs[0], 1, "sha256:aa", first),
		sealed(runs[1], 2, "sha256:aa", map[string]string{"max-num-seqs": "128", "port": "4712"}),
		sealed(runs[2], 3, "sha256:aa", map[string]string{"max-num-seqs": "256", "port": "4713"}),
		sealed(runs[3], 4, "sha256:bb", map[string]string{"max-num-seqs": "512"}), // another image
	} {
		if _, added, err := s.Ingest(t.Context(), []store.Sealed{c}); err != nil || added != 1 {
			t.Fatalf("attempt %d: %d added, %v", i, added, err)
		}
	}
	var states []string
	var valid []bool
	err := s.Pool().QueryRow(t.Context(), `select array_agg(r.state order by r.id), array_agg(a.valid order by r.id) from run r join attempt a on a.run_id = r.id`).Scan(&states, &valid)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"complete", "dead", "complete", "complete"}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if !slices.Equal(valid, []bool{true, false, true, true}) {
		t.Errorf("valid %v", valid)
	}
	var reasons []string
	var resultValid bool
	if err := s.Pool().QueryRow(t.Context(), `select a.reasons, r.valid from attempt a join result r on r.attempt_id = a.id where a.run_id = $1`, runs[1]).Scan(&reasons, &resultValid); err != nil {
		t.Fatal(err)
	}
	if resultValid || !strings.HasPrefix(reasons[0], "ENV_DRIFT: engine flag max-num-seqs 256 expected, 128 realized") {
		t.Errorf("valid %v, reasons %q", resultValid, reasons)
	}
	got, err := s.SettingFlags(t.Context(), []string{hash, strings.Repeat("0", 64)})
	want := store.Flags{hash: {"sha256:aa": {"max-num-seqs": "256"}, "sha256:bb": {"max-num-seqs": "512"}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("(-want +got):\n%s %v", diff, err)
	}
}

// TestNodeDrifts_Blamed: of a gang the node that was not as pinned is avoided, and
// none where Slurm's placement was at fault.
func TestNodeDrifts_Blamed(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	_, runs := create(t, s, sweepOf("blamed", 3))
	submit(t, s, batchToken, runs)
	for i, blamed := range [][]string{{"n2"}, nil, {}} {
		a := attempt(runs[i], int64(i+1), lifecycle.ExitDriftNode, false)
		a.Nodes, a.Blamed = []string{"n1", "n2"}, blamed
		judge(t, s, lifecycle.ActorCollect, a)
	}
	drifts, err := s.NodeDrifts(t.Context(), "lab", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, d := range drifts {
		nodes = append(nodes, d.Node)
	}
	if !slices.Equal(nodes, []string{"n1", "n2"}) {
		t.Errorf("nodes %v", nodes)
	}
	var avoided []string
	if err := s.Pool().QueryRow(t.Context(), `select array_agg(array_to_string(avoid_nodes, ',') order by id) from run`).Scan(&avoided); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(avoided, []string{"n2", "n1", ""}) {
		t.Errorf("avoided %v", avoided)
	}
}
