package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"golang.org/x/sync/errgroup"

	"sbench/internal/collect"
	"sbench/internal/lifecycle"
	"sbench/internal/metrics"
	"sbench/internal/pgtest"
	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// The benchmarks print lines of name, value and target beside Go's own, for
// docs/performance.md. Ratios are of the bare COPY of the same rows into tables
// without keys, indexes and triggers, in the same run, unless they say otherwise;
// both sides are the best of the iterations, because what else the machine does only
// ever adds.

const (
	benchSettings = 6000
	benchRepeats  = 5
)

// nightly is the sweep of a night: 6,000 settings of five runs each.
func nightly() store.NewSweep {
	n := store.NewSweep{Name: "nightly", UserName: "ada", UID: 1000, Site: "lab", HardwareClass: "emulated", File: "sweep: v1\n"}
	for i := range benchSettings {
		c := setting.Default()
		c.Model.Name = fmt.Sprintf("model-%d", i/20)
		c.Hardware.GPU = []string{"h100-sxm", "h100-pcie", "a100-sxm", "l4", "l40s"}[i%5]
		c.Engine.Kind = setting.EngineVLLM
		c.Engine.Args = map[string]string{"max-num-seqs": fmt.Sprint(64 << (i % 4)), "gpu-memory-utilization": "0.9"}
		c.Workload.Arrival.Rate = float64(1 + i%20)
		c.Workload.Duration = 300 * time.Second
		c.Workload.Seed = int64(i)
		c.Normalize()
		n.Settings = append(n.Settings, store.NewSetting{
			Hash: c.Hash(), SeriesHash: c.SeriesHash(), CanonicalSpec: c.Canonical(), Setting: c, Repeats: benchRepeats,
		})
	}
	return n
}

func BenchmarkCreateSweep(b *testing.B) {
	ctx := context.Background()
	n := nightly()
	stored, bare := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	var allocated uint64
	for b.Loop() {
		s := pgtest.NewDurable(b)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		start := time.Now()
		if _, _, err := s.CreateSweep(ctx, n); err != nil {
			b.Fatal(err)
		}
		stored = min(stored, time.Since(start))
		runtime.ReadMemStats(&after)
		allocated = after.TotalAlloc - before.TotalAlloc
		t := readRows(b, s, sweepTables)
		bare = min(bare, bareCopy(b, s, "bare_", "", benchSettings*benchRepeats, t))
	}
	b.ReportMetric(stored.Seconds(), "s/sweep")
	fmt.Printf("\nstore_sweep_seconds %.3f <=5\n", stored.Seconds())
	fmt.Printf("store_sweep_vs_bare_copy %.3f >=0.2\n", bare.Seconds()/stored.Seconds())
	fmt.Printf("store_sweep_allocated_mb %.0f <=300\n", float64(allocated)/(1<<20))
}

// sweepTables are those that storing a sweep writes.
var sweepTables = []writtenTable{{"setting", ""}, {"sweep_setting", ""}, {"run", ""}, {"transition", "where entity = 'run'"}}

// BenchmarkIngest stores attempts as the collector does, two transactions at a time,
// in a database that has stored as many before and knows how large its tables are,
// as a daemon's does after its first minutes. Every side begins after a checkpoint.
// It is compared with the bare COPY of the same rows twice: at once into tables
// without keys and indexes; and in the same chunks into tables with the same ones,
// which no store can do without, so that this ratio says what locking, judging and
// recording add.
func BenchmarkIngest(b *testing.B) {
	options := collect.DefaultOptions()
	attempts := 32 * options.Batch
	ctx := context.Background()
	stored, keyed, bare := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for b.Loop() {
		s := pgtest.NewDurable(b)
		n := nightly()
		n.Settings = n.Settings[:2*attempts/benchRepeats+1]
		_, runs := create(b, s, n)
		submitTasks(b, s, runs)
		sealed := make([]store.Sealed, 2*attempts)
		for i := range sealed {
			sealed[i] = measuredRow(runs[i])
			sealed[i].Attempt.TaskIndex = i / benchRepeats
		}
		ingestAll(ctx, b, s, options, sealed[:attempts])
		execute(b, s, "analyze")
		execute(b, s, "checkpoint")
		start := time.Now()
		ingestAll(ctx, b, s, options, sealed[attempts:])
		stored = min(stored, time.Since(start))
		written := readRows(b, s, ingestedTables, runs[attempts])
		for _, t := range written {
			if len(t.rows) != attempts {
				b.Fatalf("%d rows of %s for %d attempts", len(t.rows), t.name, attempts)
			}
		}
		keyed = min(keyed, bareCopy(b, s, "keyed_", " including indexes", options.Batch, written))
		bare = min(bare, bareCopy(b, s, "bare_", "", attempts, written))
	}
	b.ReportMetric(float64(attempts)/stored.Seconds(), "attempts/s")
	fmt.Printf("\ningest_database_attempts_per_s %.0f >=100\n", float64(attempts)/stored.Seconds())
	fmt.Printf("ingest_database_vs_bare_copy %.3f >=0.5\n", bare.Seconds()/stored.Seconds())
	fmt.Printf("ingest_database_vs_copy_with_keys %.3f -\n", keyed.Seconds()/stored.Seconds())
}

// submitTasks submits the runs of a sweep, those of a setting as a task.
func submitTasks(b *testing.B, s *store.Store, runs []int64) {
	b.Helper()
	tasks := (len(runs)-1)/benchRepeats + 1
	execute(b, s, `
insert into batch (token, site, cluster, uid, user_name, dir, attempts_dir, digest, time_limit_s, n_tasks, created_at, state, actor, changed_at)
values ($1, 'lab', 'c1', 1000, 'ada', '/spool/' || $1, '/results', 'sha256:00', 60, $2, now(), 'intent', 'submit', now())`, batchToken, tasks)
	execute(b, s, `
insert into task (token, task_index, time_limit_s, state, actor, changed_at)
select $1, i, 60, 'waiting', 'submit', now() from generate_series(0, $2::integer - 1) i`, batchToken, tasks)
	execute(b, s, `
update run set state = 'submitted', actor = 'submit', changed_at = now(), batch_token = $1, task_index = (u.n - 1) / $3
  from unnest($2::bigint[]) with ordinality as u (id, n) where run.id = u.id`, batchToken, runs, benchRepeats)
}

// ingestAll stores attempts as the collector does.
func ingestAll(ctx context.Context, b *testing.B, s *store.Store, o collect.Options, sealed []store.Sealed) {
	b.Helper()
	var group errgroup.Group
	group.SetLimit(o.Writers)
	for part := range slices.Chunk(sealed, o.Batch) {
		group.Go(func() error {
			_, _, err := s.Ingest(ctx, part)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

func measuredRow(run int64) store.Sealed {
	a := attempt(run, run, lifecycle.ExitMeasured, true)
	a.StartedAt, a.EndedAt = time.Unix(1e9, 0), time.Unix(1e9+300, 0)
	a.Dir = fmt.Sprintf("/results/attempts/%d/%d-r0", run, run)
	for i := range 20 {
		v := float64(i)
		a.Checks = append(a.Checks, result.Check{Name: fmt.Sprint("check_", i), Kind: result.CheckHarness, Verdict: result.VerdictPass, Value: &v, Reason: "well below its limit"})
	}
	for _, name := range []string{result.ResultFile, result.WindowFile, result.RequestsFile, result.TelemetryFile} {
		a.Files = append(a.Files, result.File{Name: name, Size: 1 << 20, SHA256: fmt.Sprintf("%064d", run)})
	}
	values := result.Metrics{}
	for i, m := range metrics.Table() {
		v := float64(run) + float64(i)/7
		values[m.Name] = &v
	}
	r := result.Result{MetricsVersion: "v1", PlanHash: fmt.Sprintf("%064d", run), Metrics: values, Fingerprint: json.RawMessage(`{"version":1}`)}
	return store.Sealed{
		Attempt: a, Result: &r, FingerprintHash: fmt.Sprintf("%064d", 1),
		Windows: []result.Window{{OfferedRate: 8, End: 300e9, Metrics: values}},
	}
}

// ingestedTables are those that ingestion writes, and which rows of them it wrote for
// the runs from $1 on; of run, the versions.
var ingestedTables = []writtenTable{
	{"attempt", "where run_id >= $1"},
	{"result", "where run_id >= $1"},
	{"result_window", "where attempt_id >= (select min(id) from attempt where run_id >= $1)"},
	{"transition", "where to_state = 'complete' and entity = 'run' and entity_id::bigint >= $1"},
	{"run", "where id >= $1 and state = 'complete'"},
}

type writtenTable struct{ name, where string }

// tableRows are rows of a table, ready to be sent.
type tableRows struct {
	name    string
	columns []string
	rows    [][]any
}

func readRows(b *testing.B, s *store.Store, tables []writtenTable, args ...any) []tableRows {
	b.Helper()
	list := make([]tableRows, len(tables))
	for i, t := range tables {
		found, err := s.Pool().Query(context.Background(), "select * from "+t.name+" "+t.where, args...)
		if err != nil {
			b.Fatal(err)
		}
		list[i].name = t.name
		for _, f := range found.FieldDescriptions() {
			list[i].columns = append(list[i].columns, f.Name)
		}
		list[i].rows, err = pgx.CollectRows(found, bareRow)
		if err != nil {
			b.Fatal(err)
		}
	}
	return list
}

// bareCopy copies rows, so many at a time, into new tables like those that they are
// of, without their triggers and checks.
func bareCopy(b *testing.B, s *store.Store, prefix, like string, chunk int, tables []tableRows) time.Duration {
	b.Helper()
	for _, t := range tables {
		execute(b, s, "create table "+prefix+t.name+" (like "+t.name+like+")")
	}
	execute(b, s, "checkpoint")
	start := time.Now()
	for _, t := range tables {
		for part := range slices.Chunk(t.rows, chunk) {
			_, err := s.Pool().CopyFrom(context.Background(), pgx.Identifier{prefix + t.name}, t.columns, pgx.CopyFromRows(part))
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	return time.Since(start)
}

// bareRow holds the values of a row as they are quickest to send: JSON as text,
// texts as such.
func bareRow(row pgx.CollectableRow) ([]any, error) {
	values, err := row.Values()
	for i, f := range row.FieldDescriptions() {
		switch list, isList := values[i].([]any); {
		case err != nil:
		case values[i] == nil:
		case f.DataTypeOID == pgtype.JSONBOID:
			values[i], err = json.Marshal(values[i])
		case isList:
			texts := make([]string, len(list))
			for k := range list {
				texts[k] = fmt.Sprint(list[k])
			}
			values[i] = texts
		}
	}
	return values, err
}
