package web_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/slurm"
	"sbench/internal/store"
)

// nodesOf are the nodes that the pending runs of a sweep are for, in the order of
// their repeats.
func (e *env) nodesOf(sweep int64) []string {
	e.t.Helper()
	pending, err := e.store.PendingRuns(e.t.Context(), "lab", 1000)
	if err != nil {
		e.t.Fatal(err)
	}
	var nodes []string
	for _, r := range pending.Runs {
		if r.SweepID == sweep {
			nodes = append(nodes, r.Node)
		}
	}
	return nodes
}

// l4Request is a sweep of one setting on one L4, with a partition that has it.
func l4Request(key string, o api.Options) api.SubmitRequest {
	r := request(key)
	r.File = strings.Replace(cronSweep, "path: m}", "path: /m}", 1)
	o.Partition = "cpu,l4"
	r.Options = o
	return r
}

// atL4 is an environment whose Slurm has the nodes of database.
func atL4(t *testing.T) *env {
	t.Helper()
	e := associated(t, database{"ada": {Name: "ada", DefaultAccount: "physics", Associations: []slurm.Association{{Account: "physics"}}}})
	e.site.Partitions = nil // any partition will do
	return e
}

func TestSubmit_EachNode(t *testing.T) {
	t.Parallel()
	e := atL4(t)
	each := api.Options{EachNode: true}
	resp := post[api.SubmitResponse](e, "ada", "/v1/sweeps", l4Request("a", each))
	// Two repeats on each of the two nodes that have the GPUs and are not drained.
	if got := e.nodesOf(resp.SweepID); !slices.Equal(got, []string{"n1", "n2", "n1", "n2"}) || resp.Plan.Runs != 4 {
		t.Errorf("runs for %q, %d planned", got, resp.Plan.Runs)
	}
	if sweep := get[api.Sweep](e, "ada", fmt.Sprint("/v1/sweeps/", resp.SweepID)); sweep.Settings[0].NTotal != 4 {
		t.Errorf("%+v", sweep.Settings[0])
	}
	if again := post[api.SubmitResponse](e, "ada", "/v1/sweeps", l4Request("a", each)); !again.Repeated || again.SweepID != resp.SweepID {
		t.Errorf("sent again: %+v", again)
	}
	without := each
	without.ExcludeNodes = "n[2-9]"
	if got := e.nodesOf(post[api.SubmitResponse](e, "ada", "/v1/sweeps", l4Request("b", without)).SweepID); !slices.Equal(got, []string{"n1", "n1"}) {
		t.Errorf("without n2: %q", got)
	}
	named, adaptive := each, l4Request("d", each)
	named.NodeList = "n1"
	adaptive.File = strings.Replace(adaptive.File, "repeats: 2", "repeats: {min: 3, max: 5, until: {metrics: [output_tokens_per_s], relative_ci: 0.05}}", 1)
	for name, req := range map[string]api.SubmitRequest{"named nodes": l4Request("c", named), "adaptive": adaptive} {
		if p := e.problem(api.CodeInvalid, "ada", http.MethodPost, "/v1/sweeps", req); !strings.Contains(p.Message, "--each-node") {
			t.Errorf("%s: %+v", name, p)
		}
	}
	nowhere := l4Request("e", each)
	nowhere.Options.Partition = "cpu"
	if p := e.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", nowhere); !slices.Contains(p.Reasons, "no node for it is usable now") {
		t.Errorf("%+v", p)
	}
	// A daemon that does not ask Slurm cannot know.
	deaf := newEnv(t)
	deaf.site.Partitions = nil
	if p := deaf.problem(api.CodeRefused, "ada", http.MethodPost, "/v1/sweeps", l4Request("f", each)); !strings.Contains(p.Message, "does not ask") {
		t.Errorf("%+v", p)
	}
}

// What is run again because nothing pinned explains it goes to different nodes, and
// why it cannot is on record.
func TestConfirm_Spreads(t *testing.T) {
	t.Parallel()
	e := atL4(t)
	first := post[api.SubmitResponse](e, "ada", "/v1/sweeps", l4Request("a", api.Options{}))
	hash := get[api.Sweep](e, "ada", fmt.Sprint("/v1/sweeps/", first.SweepID)).Settings[0].SettingHash
	if got := e.nodesOf(first.SweepID); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("a sweep's own runs are for %q", got)
	}
	for name, tt := range map[string]struct {
		of     int64
		spread bool
		want   []string
		reason string
	}{
		"spread":       {of: first.SweepID, spread: true, want: []string{"n2", "n1", "n2", "n1", "n2"}},
		"as they come": {of: first.SweepID, want: []string{"", "", "", "", ""}},
		"one node": {
			of:     post[api.SubmitResponse](e, "ada", "/v1/sweeps", l4Request("b", api.Options{ExcludeNodes: "n1"})).SweepID,
			spread: true, want: []string{"", "", "", "", ""}, reason: "n2 is the only usable node for it",
		},
	} {
		id, err := e.server.Confirm(t.Context(), users["ada"], tt.of, []store.Again{{SweepID: tt.of, SettingHash: hash, Runs: 5, Spread: tt.spread}},
			strings.ReplaceAll(name, " ", "-")+strings.Repeat("0", 16))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := e.nodesOf(id); !slices.Equal(got, tt.want) {
			t.Errorf("%s: runs for %q, want %q", name, got, tt.want)
		}
		spread, err := e.store.SpreadOf(t.Context(), id)
		if err != nil || spread[hash].Reason != tt.reason || (len(spread) > 0) != tt.spread {
			t.Errorf("%s: %+v, %v", name, spread, err)
		}
	}
}
