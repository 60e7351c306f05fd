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
		s := pgtest.New(b)
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
		bare = min(bare, bareSweep(b, s, n))
	}
	b.ReportMetric(stored.Seconds(), "s/sweep")
	fmt.Printf("\nstore_sweep_seconds %.3f <=5\n", stored.Seconds())
	fmt.Printf("store_sweep_vs_bare_copy %.3f >=0.2\n", bare.Seconds()/stored.Seconds())
	fmt.Printf("store_sweep_allocated_mb %.0f <=300\n", float64(allocated)/(1<<20))
}

// bareSweep copies the rows of a sweep, its transitions included, and nothing else.
func bareSweep(b *testing.B, s *store.Store, n store.NewSweep) time.Duration {
	b.Helper()
	for _, table := range []string{"setting", "sweep_setting", "run", "transition"} {
		execute(b, s, "create table bare_"+table+" (like "+table+")")
	}
	type row = []any
	var settings, members, runs, transitions []row
	now := time.Now()
	start := time.Now()
	for i := range n.Settings {
		c := &n.Settings[i]
		text, err := json.Marshal(&c.Setting)
		if err != nil {
			b.Fatal(err)
		}
		settings = append(settings, row{c.Hash, c.SeriesHash, c.CanonicalSpec})
		members = append(members, row{int64(1), c.Hash, int32(i), int32(c.Repeats), text, "", false, int32(0)})
		for k := range c.Repeats {
			id := int64(len(runs) + 1)
			runs = append(runs, row{
				id, int64(1), c.Hash, int32(k), int32(3), int32(10), int32(0), int64(0), []string{}, false, "", "pending", "", "admit", now,
			})
			transitions = append(transitions, row{id, "run", fmt.Sprint(id), "", "pending", now, "admit", ""})
		}
	}
	copyInto(b, s, "bare_setting", []string{"setting_hash", "series_hash", "canonical_spec"}, settings)
	copyInto(b, s, "bare_sweep_setting", []string{"sweep_id", "setting_hash", "ordinal", "repeats", "setting", "stop_reason", "settled", "n_valid"}, members)
	copyInto(b, s, "bare_run", []string{
		"id", "sweep_id", "setting_hash", "repeat", "budget_attempts", "budget_free", "charged", "forgiven_attempt", "avoid_nodes",
		"held", "cancelled_by", "state", "reason", "actor", "changed_at",
	}, runs)
	copyInto(b, s, "bare_transition", []string{"id", "entity", "entity_id", "from_state", "to_state", "at", "actor", "reason"}, transitions)
	return time.Since(start)
}

func copyInto(b testing.TB, s *store.Store, table string, columns []string, rows [][]any) {
	b.Helper()
	if _, err := s.Pool().CopyFrom(context.Background(), pgx.Identifier{table}, columns, pgx.CopyFromRows(rows)); err != nil {
		b.Fatal(err)
	}
}

// Attempts are stored in transactions of this many, as the collector does.
const ingestChunk = 256

// BenchmarkIngest stores attempts as the collector does, two transactions at a time.
// It is compared with the bare COPY of the same rows twice: at once into tables
// without keys and indexes; and in the same chunks into tables with the same ones,
// which no store can do without, so that this ratio says what locking, judging and
// recording add.
func BenchmarkIngest(b *testing.B) {
	const attempts, writers = 32 * ingestChunk, 2
	ctx := context.Background()
	stored, keyed, bare := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for b.Loop() {
		s := pgtest.New(b)
		n := nightly()
		n.Settings = n.Settings[:attempts/benchRepeats+1]
		_, runs := create(b, s, n)
		submit(b, s, batchToken, runs)
		sealed := make([]store.Sealed, attempts)
		for i := range sealed {
			sealed[i] = measuredRow(runs[i])
		}
		start := time.Now()
		var group errgroup.Group
		group.SetLimit(writers)
		for part := range slices.Chunk(sealed, ingestChunk) {
			group.Go(func() error {
				_, _, err := s.Ingest(ctx, part)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			b.Fatal(err)
		}
		stored = min(stored, time.Since(start))
		columns, rows := ingestedRows(b, s)
		keyed = min(keyed, bareIngest(b, s, "keyed_", " including indexes", ingestChunk, columns, rows))
		bare = min(bare, bareIngest(b, s, "bare_", "", attempts, columns, rows))
	}
	b.ReportMetric(attempts/stored.Seconds(), "attempts/s")
	fmt.Printf("\ningest_database_attempts_per_s %.0f >=100\n", attempts/stored.Seconds())
	fmt.Printf("ingest_database_vs_bare_copy %.3f >=0.5\n", bare.Seconds()/stored.Seconds())
	fmt.Printf("ingest_database_vs_copy_with_keys %.3f -\n", keyed.Seconds()/stored.Seconds())
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

// ingestedTables are those that ingestion writes; of run, the versions that it wrote.
var ingestedTables = []string{"attempt", "result", "result_window", "transition", "run"}

// ingestedRows returns the columns and the rows of each table, ready to be sent.
func ingestedRows(b *testing.B, s *store.Store) (columns map[string][]string, rows map[string][][]any) {
	b.Helper()
	columns, rows = map[string][]string{}, map[string][][]any{}
	for _, table := range ingestedTables {
		where := ""
		if table == "transition" {
			where = " where to_state = 'complete'"
		}
		found, err := s.Pool().Query(context.Background(), "select * from "+table+where)
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range found.FieldDescriptions() {
			columns[table] = append(columns[table], f.Name)
		}
		rows[table], err = pgx.CollectRows(found, bareRow)
		if err != nil {
			b.Fatal(err)
		}
	}
	return columns, rows
}

// bareIngest copies rows, so many at a time, into new tables like those that they
// are of, without their triggers and checks.
func bareIngest(b *testing.B, s *store.Store, prefix, like string, chunk int, columns map[string][]string, rows map[string][][]any) time.Duration {
	b.Helper()
	for _, table := range ingestedTables {
		execute(b, s, "create table "+prefix+table+" (like "+table+like+")")
	}
	start := time.Now()
	for _, table := range ingestedTables {
		for part := range slices.Chunk(rows[table], chunk) {
			copyInto(b, s, prefix+table, columns[table], part)
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
