package web_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"sbench/internal/api"
	"sbench/internal/store"
)

// family is a metric as it is exported: its kind and the labels of its samples.
type family struct {
	kind   string
	labels map[string]bool
}

var (
	typeForm   = regexp.MustCompile(`^# TYPE (\S+) (\S+)$`)
	sampleForm = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelForm  = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// scrape reads /metrics: the families by name, and the samples by name and labels.
func (e *env) scrape() (map[string]family, map[string]string) {
	e.t.Helper()
	status, body := e.do("", "GET", "/metrics", nil)
	if status != 200 {
		e.t.Fatalf("status %d: %s", status, body)
	}
	families, samples := map[string]family{}, map[string]string{}
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSuffix(line, "\n")
		if m := typeForm.FindStringSubmatch(line); m != nil {
			families[m[1]] = family{m[2], map[string]bool{}}
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := sampleForm.FindStringSubmatch(line)
		if m == nil {
			e.t.Fatalf("not understood: %q", line)
		}
		name := m[1]
		if _, ok := families[name]; !ok {
			name = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count")
		}
		f, ok := families[name]
		if !ok {
			e.t.Fatalf("a sample without a type: %q", line)
		}
		for _, l := range labelForm.FindAllStringSubmatch(m[2], -1) {
			f.labels[l[1]] = true
		}
		samples[line[:strings.LastIndexByte(line, ' ')]] = line[strings.LastIndexByte(line, ' ')+1:]
	}
	return families, samples
}

func (e *env) execute(sql string, args ...any) {
	e.t.Helper()
	err := e.store.WithTx(e.t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(e.t.Context(), sql, args...)
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
}

// busy is a site with something of everything that is watched.
func busy(t *testing.T) *env {
	t.Helper()
	e := newEnv(t)
	_, runs := e.sweep(4)
	get[api.Version](e, "ada", "/v1/version")
	now := time.Now().UTC()
	e.execute(`insert into rate (site, micros_per_gpu_hour, valid_from, set_by, set_at) values ('lab', 3600000000, $1, 'root', now())`, now.Add(-time.Hour))
	e.execute(`insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at, shape)
values ('sb-aaaaaaaaaaaaaaaaaaaa', 'lab', 'c1', 1000, 'ada', '/spool', '/results', 'sha256:00', 60, 2, $1, 'intent', 'submit', now(), '{"hardware":"l4","sweep":1}')`, now.Add(-time.Hour))
	e.execute(`insert into task (token, task_index, time_limit_s, gpus, state, actor, changed_at) values
('sb-aaaaaaaaaaaaaaaaaaaa', 0, 60, 2, 'waiting', 'submit', now()), ('sb-aaaaaaaaaaaaaaaaaaaa', 1, 60, 2, 'waiting', 'submit', now())`)
	e.execute(`update run set state = 'submitted', actor = 'submit', changed_at = now(), batch_token = 'sb-aaaaaaaaaaaaaaaaaaaa', task_index = 0 where id = $1`, runs[0])
	e.kill("ENV_DRIFT: image", runs[1])
	e.execute(`insert into allocation (cluster, job_id_raw, submit_time, token, task_index, state, start_time, end_time, elapsed_s, alloc_gpus, last_seen_at, ended)
values ('c1', 7, $1, 'sb-aaaaaaaaaaaaaaaaaaaa', 0, 'COMPLETED', $1, $2, 100, 2, now(), true)`, now.Add(-10*time.Minute), now.Add(-10*time.Minute+100*time.Second))
	for i, a := range []struct {
		class    string
		verified bool
	}{{"measured", true}, {"drift_node", false}, {"staging", false}} {
		e.execute(`insert into attempt (run_id, cluster, job_id_raw, restart_count, sealed, token, task_index, site, nodes, hardware_class, exit_class, valid,
 env_verified, reasons, recorded_at, started_at) values ($1, 'c1', 7, $2, true, 'sb-aaaaaaaaaaaaaaaaaaaa', 0, 'lab', '{n1}', 'emulated', $3, $4, $4, '{}', $5, $5)`,
			runs[0], i, a.class, a.verified, now.Add(-9*time.Minute))
	}
	// A sweep that took an hour, and the firings that submitted it and did not.
	e.execute(`insert into sweep (name, user_name, uid, site, request_digest, file, hardware_class, submitted_at, state, changed_at, ended_at, n_settings, n_runs)
values ('old', 'ada', 1000, 'lab', 'x', 'x', 'emulated', $1, 'incomplete', $2, $2, 0, 0)`, now.Add(-3*time.Hour), now.Add(-2*time.Hour))
	e.execute(`insert into cron (name, user_name, uid, schedule, time_zone, overlap, catch_up, jitter_s, window_s, at_window_end, site, file_name, file,
 file_digest, settings_digest, n_settings, n_runs, gpu_hours, options, created_at, updated_at, decided_until)
values ('nightly', 'ada', 1000, '@daily', 'UTC', 'skip', 'last', 0, 3600, 'continue', 'lab', 'x', 'x', 'x', 'x', 0, 0, 0, '{}', now(), now(), now())`)
	for i, f := range []struct {
		state string
		end   time.Duration // of the window
		met   any
		sweep any
	}{{"submitted", -time.Hour, nil, 1}, {"submitted", -time.Hour, true, 1}, {"submitted", time.Hour, nil, 1}, {"skipped", -time.Hour, nil, nil}} {
		e.execute(`insert into cron_firing (cron_id, due, manual, fire_at, window_end, version, state, sweep_id, decided_at, changed_at, window_met)
values (1, $1, false, $1, $2, 1, $3, $4, now(), now(), $5)`, now.Add(-time.Duration(i+1)*time.Minute), now.Add(f.end), f.state, f.sweep, f.met)
	}
	return e
}

func TestMetrics_Values(t *testing.T) {
	t.Parallel()
	e := busy(t)
	_, samples := e.scrape()
	for sample, want := range map[string]string{
		`sbench_runs{site="lab",state="submitted"}`:                                                       "1",
		`sbench_runs{site="lab",state="dead"}`:                                                            "1",
		`sbench_pending_runs{priority="normal",site="lab"}`:                                               "2",
		`sbench_queue_tasks{hardware="l4",site="lab",state="waiting"}`:                                    "2",
		`sbench_queue_limit_tasks{hardware="l4",site="lab"}`:                                              "500",
		`sbench_batches{site="lab",state="intent"}`:                                                       "1",
		`sbench_sweeps_active{site="lab"}`:                                                                "1",
		`sbench_sweeps_ended_last_day{site="lab",state="incomplete"}`:                                     "1",
		`sbench_sweeps_ended_last_day{site="lab",state="complete"}`:                                       "0",
		`sbench_makespan_last_day_seconds{quantile="0.5",site="lab"}`:                                     "3600",
		`sbench_windows_last_day{outcome="met",site="lab"}`:                                               "1",
		`sbench_windows_last_day{outcome="missed",site="lab"}`:                                            "1",
		`sbench_windows_last_day{outcome="open",site="lab"}`:                                              "1",
		`sbench_firings_last_day{site="lab",state="submitted"}`:                                           "3",
		`sbench_firings_last_day{site="lab",state="skipped"}`:                                             "1",
		`sbench_preflights_last_day{outcome="passed",site="lab"}`:                                         "1",
		`sbench_preflights_last_day{outcome="refused",site="lab"}`:                                        "1",
		`sbench_preflights_last_day{outcome="unfinished",site="lab"}`:                                     "1",
		`sbench_attempts_last_day{class="drift_node",site="lab"}`:                                         "1",
		`sbench_gpu_seconds_last_day{hardware="l4",hardware_class="emulated",kind="billable",site="lab"}`: "200",
		`sbench_cost_last_day_usd{hardware="l4",hardware_class="emulated",site="lab"}`:                    "200",
		`sbench_site_mode{mode="active",site="lab"}`:                                                      "1",
		`sbench_site_mode{mode="paused",site="lab"}`:                                                      "0",
		`sbench_refusals_total{class="quota"}`:                                                            "0",
		`sbench_submit_latency_seconds_count{site="lab"}`:                                                 "0",
		`sbench_slurm_calls_total{command="squeue",site="lab"}`:                                           "7",
	} {
		if got := samples[sample]; got != want {
			t.Errorf("%s is %q, want %s", sample, got, want)
		}
	}
	e.problem(api.CodeInvalid, "ada", "POST", "/v1/sweeps", api.SubmitRequest{})
	_, samples = e.scrape()
	if got := samples[`sbench_refusals_total{class="invalid"}`]; got != "1" {
		t.Errorf("refused as invalid: %q", got)
	}
	// What the database does not say is left out, not shown as it was.
	e.store.Close()
	_, samples = e.scrape()
	for sample := range samples {
		if strings.HasPrefix(sample, "sbench_runs") || strings.HasPrefix(sample, "sbench_cost") || strings.HasPrefix(sample, "sbench_sweeps") {
			t.Errorf("without a database: %s", sample)
		}
	}
	if samples["sbench_database_up"] != "0" {
		t.Errorf("database is up: %q", samples["sbench_database_up"])
	}
}

// TestMetrics_Impersonal: whoever reaches the daemon reads its metrics, so no name
// of a user, an account or a sweep is in them.
func TestMetrics_Impersonal(t *testing.T) {
	t.Parallel()
	e := busy(t)
	_, body := e.do("", "GET", "/metrics", nil)
	for _, name := range []string{"ada", "nightly", "physics"} {
		if strings.Contains(string(body), `"`+name) {
			t.Errorf("%q is in the metrics", name)
		}
	}
}

// uses finds the metrics and labels in an expression of PromQL.
var (
	nameInExpr  = regexp.MustCompile(`\bsbench_[a-z_]+\b(\{[^}]*\})?`)
	byInExpr    = regexp.MustCompile(`\b(?:by|on|ignoring)\s*\(([^)]*)\)`)
	matcherForm = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
)

// checkExpr returns what an expression names and the daemon does not export.
func checkExpr(expr string, families map[string]family) []string {
	var faults []string
	labels := map[string]bool{"instance": true, "job": true, "le": true}
	names := nameInExpr.FindAllString(expr, -1)
	if len(names) == 0 {
		return []string{"names no metric of sbench"}
	}
	for _, use := range names {
		name, matchers, _ := strings.Cut(use, "{")
		base, isBucket := strings.CutSuffix(name, "_bucket")
		f, ok := families[base]
		if !ok || isBucket != (f.kind == "histogram") {
			faults = append(faults, name+" is not exported")
			continue
		}
		maps.Copy(labels, f.labels)
		for _, m := range matcherForm.FindAllStringSubmatch(matchers, -1) {
			if !f.labels[m[1]] {
				faults = append(faults, name+" has no label "+m[1])
			}
		}
		if strings.Contains(expr, "rate("+name) && f.kind == "gauge" {
			faults = append(faults, name+" is a gauge and has no rate")
		}
	}
	for _, by := range byInExpr.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(by[1], ",") {
			if l = strings.TrimSpace(l); l != "" && !labels[l] {
				faults = append(faults, "no metric here has the label "+l)
			}
		}
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") || strings.Count(expr, "[") != strings.Count(expr, "]") {
		faults = append(faults, "its brackets do not match")
	}
	return faults
}

// TestMetrics_AlertsAndDashboard: every metric and label that the shipped alert
// rules and the dashboard name is exported, and every metric is documented.
func TestMetrics_AlertsAndDashboard(t *testing.T) {
	t.Parallel()
	families, _ := busy(t).scrape()
	exprs := map[string]string{}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	text := readFile(t, "../../docs/monitoring/alerts.yaml")
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || exprs[r.Alert] != "" {
				t.Errorf("rule %+v is incomplete, or there twice", r)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("%s: for %q", r.Alert, r.For)
			}
			exprs[r.Alert] = r.Expr
		}
	}
	var board struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(readFile(t, "../../docs/monitoring/dashboard.json"), &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.GridPos.W == 0 || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q is incomplete, or its id is taken", p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			exprs["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	if len(exprs) < 40 {
		t.Fatalf("only %d expressions", len(exprs))
	}
	for _, where := range slices.Sorted(maps.Keys(exprs)) {
		for _, fault := range checkExpr(exprs[where], families) {
			t.Errorf("%s: %s", where, fault)
		}
	}
	page := string(readFile(t, "../../docs/monitoring.md"))
	for name := range families {
		if strings.HasPrefix(name, "sbench_") && !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/monitoring.md does not describe %s", name)
		}
	}
}

// TestCheckExpr: the check of the rules finds what it looks for.
func TestCheckExpr(t *testing.T) {
	t.Parallel()
	families := map[string]family{
		"sbench_runs": {"gauge", map[string]bool{"site": true}}, "sbench_calls_total": {"counter", map[string]bool{"site": true}},
		"sbench_wait_seconds": {"histogram", map[string]bool{"site": true, "le": true}},
	}
	for expr, want := range map[string][]string{
		`sum by (site) (sbench_runs{site="a"}) > 1`:                         nil,
		`histogram_quantile(0.9, sum by (le) (sbench_wait_seconds_bucket))`: nil,
		`up == 0`:                         {"names no metric of sbench"},
		`sbench_walks > 1`:                {"sbench_walks is not exported"},
		`sbench_wait_seconds > 1`:         {"sbench_wait_seconds is not exported"},
		`sbench_runs{state="dead"} > 1`:   {"sbench_runs has no label state"},
		`sum by (state) (sbench_runs)`:    {"no metric here has the label state"},
		`rate(sbench_runs[5m])`:           {"sbench_runs is a gauge and has no rate"},
		`rate(sbench_calls_total[5m] > 1`: {"its brackets do not match"},
	} {
		if diff := cmp.Diff(want, checkExpr(expr, families)); diff != "" {
			t.Errorf("%s: %s", expr, diff)
		}
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
