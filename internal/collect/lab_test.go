package collect_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/collect"
	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/pgtest"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/setting"
	"sbench/internal/store"
)

const token = "sb-aaaaaaaaaaaaaaaaaaaa"

// lab is a sweep in a batch on a database, with a folder that runners seal into.
type lab struct {
	t        testing.TB
	store    *store.Store
	db       *pgx.Conn
	attempts string
	sweep    int64
	hashes   []string
	runs     []int64 // in the order of settings, then repeats
	repeats  int
	requests int // of an attempt
	events   int // of a request; 4 where it is 0
	samples  int // of telemetry
	collect  *collect.Collector
}

// newLab makes a sweep of settings with so many repeats each, all submitted.
func newLab(t testing.TB, settings, repeats int) *lab {
	t.Helper()
	dsn := pgtest.DSN(t)
	s, err := store.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	db, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.Background()) })
	l := &lab{t: t, store: s, db: db, attempts: filepath.Join(t.TempDir(), "attempts"), repeats: repeats, requests: 200}
	n := store.NewSweep{Name: "lab", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated"}
	for i := range settings {
		c := setting.Default()
		c.Model.Name = fmt.Sprintf("model-%d", i)
		c.Workload.Arrival.Rate = 8
		c.Engine.Args = map[string]string{"max-num-seqs": "256"}
		c.Workload.Duration = 100 * time.Second
		c.Normalize()
		l.hashes = append(l.hashes, c.Hash())
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: c.Hash(), SeriesHash: c.SeriesHash(), CanonicalSpec: c.Canonical(), Setting: c, Repeats: repeats,
		})
	}
	if l.sweep, _, err = s.CreateSweep(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	l.query(`select array_agg(id order by id) from run`, &l.runs)
	l.exec(`insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at)
values ($1, 'lab', 'c1', $2, 'ada', '/spool', $3, 'sha256:00', 60, 1, now(), 'intent', 'submit', now())`, token, os.Getuid(), l.attempts)
	l.exec(`insert into task (token, task_index, time_limit_s, state, actor, changed_at) values ($1, 0, 60, 'waiting', 'submit', now())`, token)
	l.submit(l.runs...)
	options := collect.DefaultOptions()
	options.LateEvery = 0
	// The clock stands still: what is put off stays so, however slow the machine.
	start := time.Now()
	options.Now = func() time.Time { return start }
	l.collect = collect.New(s, slog.New(slog.NewTextHandler(io.Discard, nil)), options)
	return l
}

func (l *lab) exec(sql string, args ...any) {
	l.t.Helper()
	if _, err := l.db.Exec(context.Background(), sql, args...); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) query(sql string, into ...any) {
	l.t.Helper()
	if err := l.db.QueryRow(context.Background(), sql).Scan(into...); err != nil {
		l.t.Fatalf("%s: %v", sql, err)
	}
}

func (l *lab) submit(runs ...int64) {
	l.t.Helper()
	l.exec(`update run set state = 'submitted', actor = 'submit', changed_at = now(), batch_token = $1, task_index = 0 where id = any($2)`, token, runs)
}

// manifest is what a runner would seal for a run, before the files are added.
func (l *lab) manifest(run, job int64, class lifecycle.ExitClass) result.Manifest {
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Add(time.Duration(run) * time.Minute)
	m := result.Manifest{
		ExitClass: class, EnvVerified: class == lifecycle.ExitMeasured, Valid: class == lifecycle.ExitMeasured, Runner: "test",
		Reasons: []string{string(class)},
		Attempt: result.Attempt{
			RunID: run, Sweep: l.sweep, Token: token, Site: "lab", Cluster: "c1", JobIDRaw: job,
			Nodes: []string{fmt.Sprintf("n%d", run)}, HardwareClass: "emulated", StartedAt: start, EndedAt: start.Add(time.Minute),
		},
	}
	index := int(run - l.runs[0])
	m.Attempt.SettingHash, m.Attempt.Repeat = l.hashes[index/l.repeats], index%l.repeats
	l.t.Helper()
	var series string
	if err := l.db.QueryRow(context.Background(), `select series_hash from setting where setting_hash = $1`, m.Attempt.SettingHash).Scan(&series); err != nil {
		l.t.Fatal(err)
	}
	m.Attempt.SeriesHash = series
	return m
}

// requests are n requests a tenth of a second apart with the TTFT of ms each, and
// so many events of one token each, 10 ms apart.
func requests(n, events int, ms func(i int) int64) []result.Request {
	rows := make([]result.Request, n)
	for i := range rows {
		due := int64(i) * 1e8
		first := due + ms(i)*1e6
		last, tokens, one := first+int64(events-1)*10e6, int32(events), int32(1)
		rows[i] = result.Request{
			Index: int32(i), Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: due,
			TDispatch: &due, TWritten: &due, TTok1: &first, TContent1: &first, TTokN: &last, TEnd: &last,
			OutputTokens: &tokens, InputTokens: &tokens, TokensFirst: &one, TokenSource: "usage",
		}
		for k := range events {
			rows[i].EventTimes, rows[i].EventTokens = append(rows[i].EventTimes, first+int64(k)*10e6), append(rows[i].EventTokens, 1)
		}
	}
	return rows
}

// telemetry is n samples, nine quantities of a GPU every 100 ms.
func telemetry(n int) []result.Telemetry {
	rows := make([]result.Telemetry, n)
	for i := range rows {
		v := float64(300 + i%97)
		rows[i] = result.Telemetry{T: int64(i/9) * 1e8, Source: "gpu0", Name: fmt.Sprintf("quantity_%d", i%9), Value: &v}
	}
	return rows
}

// seal writes a measured attempt, or one that was not measured, and returns its
// folder. change may alter the result before it is written.
func (l *lab) seal(m result.Manifest, ttft func(i int) int64, change ...func(*result.Result)) string {
	l.t.Helper()
	w, err := seal.Create(seal.Dir(l.attempts, m.Attempt.RunID, m.Attempt.JobIDRaw, m.Attempt.RestartCount))
	if err != nil {
		l.t.Fatal(err)
	}
	write := func(name string, encode func(io.Writer) error) {
		l.t.Helper()
		if err := w.WriteFile(name, encode); err != nil {
			l.t.Fatal(err)
		}
	}
	if m.ExitClass == lifecycle.ExitMeasured {
		rows := requests(l.requests, cmp.Or(l.events, 4), ttft)
		window := metrics.Compute(rows, result.Window{OfferedRate: 10, End: 100e9}, nil)
		window.Histograms = nil // their encoding is slow, and nothing here reads them
		r := result.Result{
			Attempt: m.Attempt, Valid: m.Valid, EnvVerified: m.EnvVerified, MetricsVersion: result.MetricsVersion, PlanHash: "plan",
			Metrics: window.Metrics, NullReasons: window.NullReasons, Fingerprint: []byte(`{"version":1}`),
		}
		for _, c := range change {
			c(&r)
		}
		write(result.ResultFile, func(out io.Writer) error { return resultfile.EncodeResult(out, r) })
		write(result.WindowFile, func(out io.Writer) error {
			return resultfile.EncodeWindows(out, m.Attempt, []result.Window{window})
		})
		write(result.RequestsFile, func(out io.Writer) error { return resultfile.EncodeRequests(out, m.Attempt, rows) })
		if l.samples > 0 {
			write(result.TelemetryFile, func(out io.Writer) error { return resultfile.EncodeTelemetry(out, m.Attempt, telemetry(l.samples)) })
		}
	}
	write(result.RunnerLog, func(out io.Writer) error { _, err := io.WriteString(out, "log\n"); return err })
	if _, err := w.Seal(m); err != nil {
		l.t.Fatal(err)
	}
	return w.Dir()
}

// measured seals a valid attempt of a run.
func (l *lab) measured(run, job int64) string {
	l.t.Helper()
	return l.seal(l.manifest(run, job, lifecycle.ExitMeasured), func(i int) int64 { return 40 + int64(i%7) + run })
}

func (l *lab) tick() collect.Report {
	l.t.Helper()
	report, err := l.collect.Tick(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return report
}

func (l *lab) state(run int64) lifecycle.RunState {
	l.t.Helper()
	runs, err := l.store.Runs(l.t.Context(), run)
	if err != nil || len(runs) != 1 {
		l.t.Fatalf("run %d: %v, %v", run, runs, err)
	}
	return runs[0].State
}

// settleTasks is the tracker: the tasks have ended, and what is left of their
// runs is decided.
func (l *lab) settleTasks() {
	l.t.Helper()
	l.exec(`update task set state = 'ended', actor = 'track', changed_at = now() where state <> 'ended'`)
	var ended []store.Ended
	for _, r := range l.runs {
		ended = append(ended, store.Ended{RunID: r, Token: token})
	}
	err := l.store.WithTx(l.t.Context(), func(tx *store.Tx) error {
		_, err := tx.Judge(l.t.Context(), ended, lifecycle.ActorTrack, nil)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) count(table string) (n int) {
	l.t.Helper()
	l.query(`select count(*) from `+table, &n)
	return n
}
