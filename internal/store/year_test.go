//go:build year

package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sbench/internal/aggregate"
	"sbench/internal/metrics"
	"sbench/internal/pgtest"
	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/internal/store"
)

const (
	// yearFactor scales the synthetic year: 1 is 365 nights of 6,000 settings with
	// five runs each, which is 11 million attempts.
	yearFactor = "SBENCH_YEAR_FACTOR"
	// yearDSN names a database of one's own in which the year is kept: it is made
	// there where the database is empty, and only measured where it was made before.
	yearDSN = "SBENCH_YEAR_DSN"
	// spare is the disk space that is left alone, in bytes.
	spare = 4 << 30
)

// TestYear generates a year of nights and times the product's own statements on
// it. The first night goes through the store as every night does; the others are
// copies of its rows with other ids, times and numbers, made by the database.
// Runs are there for the first and the last night, load points and transitions for
// the first only: no statement here reads others.
func TestYear(t *testing.T) {
	factor := 1.0
	if text := os.Getenv(yearFactor); text != "" {
		var err error
		if factor, err = strconv.ParseFloat(text, 64); err != nil || factor <= 0 {
			t.Fatalf("%s=%s is no factor", yearFactor, text)
		}
	}
	y := &year{T: t, nights: max(2, int(365*factor))}
	for _, s := range nightly().Settings {
		y.hashes, y.series = append(y.hashes, s.Hash), append(y.series, s.SeriesHash)
	}
	if !y.open() {
		y.generate()
	}
	y.queries()
	y.sizes()
	y.ingest()
}

type year struct {
	*testing.T
	store  *store.Store
	nights int
	sweep  int64 // of the first night
	hashes []string
	series []string
}

// open says whether the year is there already.
func (y *year) open() bool {
	dsn := os.Getenv(yearDSN)
	if dsn == "" {
		y.store = pgtest.NewLarge(y)
		return false
	}
	s, err := store.Open(y.Context(), dsn)
	if err != nil {
		y.Fatal(err)
	}
	y.Cleanup(s.Close)
	if err := s.Migrate(y.Context()); err != nil {
		y.Fatal(err)
	}
	y.store = s
	if y.number("select count(*) from pg_tables where tablename = 'synthetic_year'") == 0 {
		if y.number("select count(*) from sweep") > 0 {
			y.Fatalf("the database of %s has sweeps, and no whole year: give an empty one", yearDSN)
		}
		return false
	}
	y.sweep = y.number("select sweep from synthetic_year")
	if n := y.number("select nights from synthetic_year"); int(n) != y.nights {
		y.Fatalf("the database of %s has %d nights, not %d", yearDSN, n, y.nights)
	}
	return true
}

func (y *year) execute(sql string) {
	y.Helper()
	if _, err := y.store.Pool().Exec(context.Background(), sql); err != nil {
		y.Fatalf("%.200s: %v", sql, err)
	}
}

func (y *year) number(sql string) (n int64) {
	y.Helper()
	if err := y.store.Pool().QueryRow(context.Background(), sql).Scan(&n); err != nil {
		y.Fatalf("%s: %v", sql, err)
	}
	return n
}

// progress is for whoever waits.
func (y *year) progress(start time.Time, format string, args ...any) {
	fmt.Printf("# %s: %s\n", time.Since(start).Round(time.Second), fmt.Sprintf(format, args...))
}

// generate makes the year. It needs no crash to be survived, so nothing of it is
// logged, and the indexes come after the rows, as in a restored backup.
func (y *year) generate() {
	start := time.Now()
	y.unlogged()
	y.first()
	y.progress(start, "the first night is stored and summed up")
	y.room()
	// Nothing is deleted, so there is nothing to clean up, also not while the queries
	// are timed.
	for _, table := range yearTables {
		y.execute("alter table " + table + " set (autovacuum_enabled = false)")
	}
	indexes := y.dropIndexes()
	y.copies(start)
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for _, sql := range indexes {
		group.Go(func() error { return y.atOnce("set maintenance_work_mem = '256MB'", sql) })
	}
	if err := group.Wait(); err != nil {
		y.Fatal(err)
	}
	y.progress(start, "%d indexes", len(indexes))
	for _, table := range yearTables {
		y.execute("analyze " + table)
	}
	for _, table := range []string{"sweep", "run", "attempt", "aggregate"} {
		y.execute(fmt.Sprintf("select setval(pg_get_serial_sequence('%s', 'id'), (select max(id) from %[1]s))", table))
	}
	y.execute(fmt.Sprintf("create table synthetic_year as select %d as nights, %d::bigint as sweep", y.nights, y.sweep))
	y.progress(start, "%d nights", y.nights)
}

// unlogged takes the tables out of the log, those first that no other refers to.
func (y *year) unlogged() {
	rows, err := y.store.Pool().Query(context.Background(), "select tablename from pg_tables where schemaname = 'public'")
	if err != nil {
		y.Fatal(err)
	}
	var left []string
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			y.Fatal(err)
		}
		left = append(left, table)
	}
	for n := 0; n != len(left); {
		n = len(left)
		left = slices.DeleteFunc(left, func(table string) bool {
			return y.atOnce("alter table "+table+" set unlogged") == nil
		})
	}
	if len(left) > 0 {
		y.Fatalf("cannot take out of the log: %v", left)
	}
}

// atOnce executes statements on one connection, which is then as it was.
func (y *year) atOnce(statements ...string) error {
	ctx := context.Background()
	conn, err := y.store.Pool().Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for _, sql := range append(statements, "reset all") {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.120s: %w", sql, err)
		}
	}
	return nil
}

// first makes the first night with the store's own writes.
func (y *year) first() {
	var runs []int64
	y.sweep, runs = create(y, y.store, nightly())
	submit(y, y.store, batchToken, runs)
	if _, err := y.ingestRuns(runs); err != nil {
		y.Fatal(err)
	}
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for chunk := range slices.Chunk(y.hashes, 100) {
		group.Go(func() error { return y.settle(chunk) })
	}
	if err := group.Wait(); err != nil {
		y.Fatal(err)
	}
}

// ingestRuns stores a result for each run, 256 in a transaction, and says how long
// that took. No two values of a night are alike: measured ones do not compress.
func (y *year) ingestRuns(runs []int64) (time.Duration, error) {
	list := make([]store.Sealed, len(runs))
	for i, run := range runs {
		list[i] = measuredRow(run)
		values := result.Metrics{}
		random := rand.New(rand.NewPCG(uint64(run), 0))
		for name, v := range list[i].Result.Metrics {
			noisy := *v * (0.98 + 0.04*random.Float64())
			values[name] = &noisy
		}
		list[i].Result.Metrics = values
	}
	start := time.Now()
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for chunk := range slices.Chunk(list, 256) {
		group.Go(func() error {
			_, _, err := y.store.Ingest(context.Background(), chunk)
			return err
		})
	}
	err := group.Wait()
	return time.Since(start), err
}

func (y *year) settle(hashes []string) error {
	ctx := context.Background()
	var keys []store.SettingKey
	for _, hash := range hashes {
		keys = append(keys, store.SettingKey{SweepID: y.sweep, SettingHash: hash})
	}
	valid, err := y.store.ResultsOf(ctx, keys)
	if err != nil {
		return err
	}
	var list []store.Settlement
	for _, key := range keys {
		in := aggregate.Input{NTotal: benchRepeats, Terminal: true}
		for i := range valid[key] {
			in.Runs = append(in.Runs, valid[key][i].Run())
		}
		in.Merge = func([]int64) (aggregate.Merged, error) { return mergedOf(in.Runs[0].Metrics), nil }
		sum, err := aggregate.Compute(in)
		if err != nil {
			return err
		}
		list = append(list, store.Settlement{Key: key, Sum: sum, Used: valid[key]})
	}
	done, err := y.store.SettleAll(ctx, list)
	if err == nil && slices.ContainsFunc(done, func(d store.Settled) bool { return d.Stale }) {
		err = fmt.Errorf("settings changed while they were summed up")
	}
	return err
}

// mergedOf stands for the percentiles over the requests of all runs: there are no
// requests here.
func mergedOf(values result.Metrics) aggregate.Merged {
	merged := aggregate.Merged{Metrics: result.Metrics{}}
	for _, m := range metrics.Table() {
		if num, _ := m.Quantile(); num > 0 && !m.Stat.Interpolated() {
			merged.Metrics[m.Name] = values[m.Name]
		}
	}
	return merged
}

// yearTables are copied, in this order.
var yearTables = []string{"sweep", "sweep_setting", "run", "attempt", "result", "aggregate"}

// room ends the test where the disk cannot hold the year.
func (y *year) room() {
	var night int64
	for _, table := range yearTables {
		if table != "run" {
			night += y.number("select pg_total_relation_size('" + table + "')")
		}
	}
	var dir string
	if err := y.store.Pool().QueryRow(context.Background(), "show data_directory").Scan(&dir); err != nil {
		y.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		y.Logf("cannot tell how much room there is: %v", err)
		return
	}
	need, free := night*int64(y.nights), int64(fs.Bavail)*fs.Bsize
	fmt.Printf("# a night takes %d MB, %d nights %d MB; %d MB are free\n", night>>20, y.nights, need>>20, free>>20)
	// A disk of one's own may compress.
	if need+spare > free && os.Getenv(yearDSN) == "" {
		y.Fatalf("%d nights do not fit: set %s to at most %.2f, or TMPDIR to a larger disk", y.nights, yearFactor, float64(free-spare)/float64(night)/365)
	}
}

// dropIndexes drops the indexes that are no constraint's, and returns what makes
// them again.
func (y *year) dropIndexes() (again []string) {
	rows, err := y.store.Pool().Query(context.Background(), `
select i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) from pg_index i
 where i.indrelid = any($1::text[]::regclass[]) and not exists (select from pg_constraint c where c.conindid = i.indexrelid)
 order by 1`, yearTables)
	if err != nil {
		y.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name, sql string
		if err := rows.Scan(&name, &sql); err != nil {
			y.Fatal(err)
		}
		names, again = append(names, name), append(again, sql)
	}
	y.execute("drop index " + strings.Join(names, ", "))
	return again
}

// copies makes the other nights, several side by side. The rows are copies of
// rows that were checked, so the triggers and foreign keys are not asked again.
func (y *year) copies(start time.Time) {
	statements := map[string]string{}
	for _, table := range yearTables {
		statements[table] = y.copyStatement(table)
		// The tables grow, and have no indexes now.
		y.execute("create unlogged table first_" + table + " as select * from " + table)
		y.execute("analyze first_" + table)
	}
	var done atomic.Int64
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for night := 1; night < y.nights; night++ {
		group.Go(func() error {
			list := []string{"set session_replication_role = replica"}
			for _, table := range yearTables {
				if table != "run" || night == y.nights-1 {
					list = append(list, strings.ReplaceAll(statements[table], "$night", strconv.Itoa(night)))
				}
			}
			if err := y.atOnce(list...); err != nil {
				return fmt.Errorf("night %d: %w", night, err)
			}
			if n := done.Add(1); n%10 == 0 {
				y.progress(start, "%d of %d nights", n+1, y.nights)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		y.Fatal(err)
	}
	for _, table := range yearTables {
		y.execute("drop table first_" + table)
	}
}

// copyStatement copies the first night's rows of a table to night $night.
func (y *year) copyStatement(table string) string {
	rows, err := y.store.Pool().Query(context.Background(),
		"select column_name, data_type from information_schema.columns where table_name = $1 and table_schema = 'public' and is_generated = 'NEVER' order by ordinal_position", table)
	if err != nil {
		y.Fatal(err)
	}
	defer rows.Close()
	const perNight = benchSettings * benchRepeats
	var columns, values []string
	metric := map[string]bool{}
	for _, c := range store.TableColumns()[table] {
		metric[c.Name] = table == "result" && c.Type == "double precision" && !strings.HasPrefix(c.Name, "workload_")
	}
	for rows.Next() {
		var name, kind string
		if err := rows.Scan(&name, &kind); err != nil {
			y.Fatal(err)
		}
		value := "t." + name
		switch {
		case name == "sweep_id" || table == "sweep" && name == "id":
			value += " + $night"
		case table == "aggregate" && name == "id":
			value += fmt.Sprintf(" + $night * %d", len(y.hashes))
		case name == "attempt_id" || name == "run_id" || (table == "run" || table == "attempt") && name == "id":
			value += fmt.Sprintf(" + $night * %d", perNight)
		case name == "attempts":
			value = fmt.Sprintf("array(select i + $night * %d from unnest(t.attempts) i)", perNight)
		case kind == "timestamp with time zone":
			value += " + $night * interval '1 day'"
		case name == "idempotency_key":
			value = "null"
		case metric[name]:
			value += " * random.factor"
		}
		columns, values = append(columns, name), append(values, value)
	}
	// One factor for each row: the database draws it 30,000 times a night.
	return fmt.Sprintf("insert into %s (%s) overriding system value select %s from first_%[1]s t cross join lateral (select 0.98 + 0.04 * random() as factor) random",
		table, strings.Join(columns, ", "), strings.Join(values, ", "))
}

func (y *year) sizes() {
	for _, table := range []string{"attempt", "result", "aggregate"} {
		n := y.number("select count(*) from " + table)
		fmt.Printf("year_%s_rows %d -\n", table, n)
		fmt.Printf("year_%s_bytes_per_row %d -\n", table, y.number("select pg_table_size('"+table+"')")/n)
		fmt.Printf("year_%s_index_bytes_per_row %d -\n", table, y.number("select pg_indexes_size('"+table+"')")/n)
	}
	fmt.Printf("year_database_gb %.1f -\n", float64(y.number("select pg_database_size(current_database())"))/(1<<30))
	var axes []string
	for _, a := range setting.Axes() {
		axes = append(axes, a.Column)
	}
	for _, table := range []string{"result", "aggregate"} {
		n := y.number("select count(*) from information_schema.columns where table_name = '" + table + "' and column_name in ('" + strings.Join(axes, "', '") + "')")
		fmt.Printf("year_%s_axis_columns %d >=%d\n", table, n, len(axes))
	}
}
