//go:build year

package store_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sbench/internal/aggregate"
	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// yearFactor scales the synthetic year: 1 is 365 nights of 6,000 settings with
// five runs each, which is 11 million attempts.
const yearFactor = "SBENCH_YEAR_FACTOR"

// spare is the disk space that is left alone, in bytes.
const spare = 4 << 30

// TestYear generates a year of nights and times the product's own statements on
// it. The first night goes through the store as every night does; the others are
// copies of its rows with other ids, times and numbers, made by the database.
// Load points and transitions are made for the first night only: no statement
// here reads them.
func TestYear(t *testing.T) {
	factor := 1.0
	if text := os.Getenv(yearFactor); text != "" {
		var err error
		if factor, err = strconv.ParseFloat(text, 64); err != nil || factor <= 0 {
			t.Fatalf("%s=%s is no factor", yearFactor, text)
		}
	}
	y := &year{T: t, store: pgtest.New(t), nights: max(2, int(365*factor))}
	y.execute("alter system set max_wal_size = '8GB'")
	y.execute("alter system set maintenance_work_mem = '512MB'")
	y.execute("select pg_reload_conf()")
	y.first()
	y.room()
	start := time.Now()
	y.copies()
	t.Logf("%d nights in %s", y.nights, time.Since(start).Round(time.Second))
	y.sizes()
	y.queries()
}

type year struct {
	*testing.T
	store  *store.Store
	nights int
	sweep  int64   // of the first night
	runs   []int64 // of the first night
	hashes []string
	series []string
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

// first makes the first night with the store's own writes.
func (y *year) first() {
	ctx := context.Background()
	n := nightly()
	for _, s := range n.Settings {
		y.hashes, y.series = append(y.hashes, s.Hash), append(y.series, s.SeriesHash)
	}
	y.sweep, y.runs = create(y, y.store, n)
	submit(y, y.store, batchToken, y.runs)
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for chunk := range slices.Chunk(y.runs, 500) {
		group.Go(func() error {
			var sealed []store.Sealed
			for _, run := range chunk {
				sealed = append(sealed, measuredRow(run))
			}
			_, _, err := y.store.Ingest(ctx, sealed)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		y.Fatal(err)
	}
	for _, hash := range y.hashes {
		group.Go(func() error { return y.settle(store.SettingKey{SweepID: y.sweep, SettingHash: hash}) })
	}
	if err := group.Wait(); err != nil {
		y.Fatal(err)
	}
}

func (y *year) settle(key store.SettingKey) error {
	ctx := context.Background()
	valid, err := y.store.Results(ctx, key)
	if err != nil {
		return err
	}
	in := aggregate.Input{NTotal: benchRepeats, Terminal: true}
	for i := range valid {
		in.Runs = append(in.Runs, valid[i].Run())
	}
	sum, err := aggregate.Compute(in)
	if err != nil {
		return err
	}
	_, err = y.store.Settle(ctx, key, sum, valid)
	return err
}

// yearTables are copied, in this order.
var yearTables = []string{"sweep", "sweep_setting", "run", "attempt", "result", "aggregate"}

// room ends the test where the disk cannot hold the year.
func (y *year) room() {
	var night int64
	for _, table := range yearTables {
		night += y.number("select pg_total_relation_size('" + table + "')")
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
	y.Logf("a night takes %d MB, %d nights %d MB of %d MB", night>>20, y.nights, need>>20, free>>20)
	if need+spare > free {
		y.Fatalf("%d nights do not fit: set %s to at most %.2f, or TMPDIR to a larger disk", y.nights, yearFactor, float64(free-spare)/float64(night)/365)
	}
}

// copies makes the other nights, several side by side. The rows are copies of
// rows that were checked, so the triggers and foreign keys are not asked again.
func (y *year) copies() {
	statements := make([]string, len(yearTables))
	for i, table := range yearTables {
		statements[i] = y.copyStatement(table)
	}
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for night := 1; night < y.nights; night++ {
		group.Go(func() error {
			conn, err := y.store.Pool().Acquire(context.Background())
			if err != nil {
				return err
			}
			defer conn.Release()
			if _, err := conn.Exec(context.Background(), "set session_replication_role = replica"); err != nil {
				return err
			}
			for _, sql := range statements {
				if _, err := conn.Exec(context.Background(), strings.ReplaceAll(sql, "$night", strconv.Itoa(night))); err != nil {
					return fmt.Errorf("night %d: %.120s: %w", night, sql, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		y.Fatal(err)
	}
	for _, table := range yearTables {
		y.execute("vacuum analyze " + table)
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
	perNight := len(y.runs)
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
		value := name
		switch {
		case name == "sweep_id" || table == "sweep" && name == "id":
			value += " + $night"
		case table == "aggregate" && name == "id":
			value += fmt.Sprintf(" + $night * %d", len(y.hashes))
		case name == "attempt_id" || name == "run_id" || (table == "run" || table == "attempt") && name == "id":
			value += fmt.Sprintf(" + $night * %d", perNight)
		case name == "attempts":
			value = fmt.Sprintf("array(select i + $night * %d from unnest(attempts) i)", perNight)
		case kind == "timestamp with time zone":
			value += " + $night * interval '1 day'"
		case name == "idempotency_key":
			value = "null"
		case metric[name]:
			value += " * (0.98 + 0.04 * random())"
		}
		columns, values = append(columns, name), append(values, value)
	}
	where := fmt.Sprintf("sweep_id = %d", y.sweep)
	switch table {
	case "sweep":
		where = fmt.Sprintf("id = %d", y.sweep)
	case "attempt":
		where = fmt.Sprintf("id <= %d", perNight)
	}
	return fmt.Sprintf("insert into %s (%s) overriding system value select %s from %s where %s",
		table, strings.Join(columns, ", "), strings.Join(values, ", "), table, where)
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

// warm is the median of further runs of a query that ran before.
func (y *year) warm(name, target string, query func(ctx context.Context, round int) (rows int, err error)) {
	y.Helper()
	const before, rounds = 3, 9
	var took []time.Duration
	for i := range before + rounds {
		start := time.Now()
		rows, err := query(context.Background(), i)
		if err != nil || rows == 0 {
			y.Fatalf("%s: %d rows, %v", name, rows, err)
		}
		if i >= before {
			took = append(took, time.Since(start))
		}
	}
	slices.Sort(took)
	fmt.Printf("year_%s_ms %.1f %s\n", name, float64(took[rounds/2].Microseconds())/1000, target)
}

// queries are the product's own: what sbench results, compare and the judgement of a
// night read.
func (y *year) queries() {
	last := y.sweep + int64(y.nights) - 1
	y.warm("latest_of_sweep", "<=200", func(ctx context.Context, _ int) (int, error) {
		list, err := y.store.AggregateViews(ctx, last)
		return len(list), err
	})
	// All nights of a series, as the screen reads them.
	y.warm("history_of_setting", "<=200", func(ctx context.Context, round int) (int, error) {
		nights, err := y.store.Nights(ctx, y.series[round%3:round%3+1], "lab", "emulated", time.Unix(0, 0), time.Now().AddDate(2, 0, 0))
		if err == nil && len(nights) != y.nights {
			err = fmt.Errorf("%d nights of %d", len(nights), y.nights)
		}
		return len(nights), err
	})
	// Two settings side by side, with the runs that their latest summaries are of.
	y.warm("compare", "<=200", func(ctx context.Context, round int) (int, error) {
		var list []store.Latest
		for _, hash := range []string{y.hashes[round%3], y.hashes[1000+round%3]} {
			one, err := y.store.LatestOfSettings(ctx, hash, "")
			if err != nil {
				return 0, err
			}
			list = append(list, one...)
		}
		measured, err := y.store.Measured(ctx, store.Attempts(list))
		if err == nil && (len(list) != 2 || len(measured) != 2*benchRepeats) {
			err = fmt.Errorf("%d settings, %d runs", len(list), len(measured))
		}
		return len(measured), err
	})
	// What compare --where reads before it looks at the conditions: every setting.
	y.warm("latest_of_all_settings", "-", func(ctx context.Context, _ int) (int, error) {
		list, err := y.store.LatestOfSettings(ctx, "", "lab")
		return len(list), err
	})
	y.warm("report_history", "<=200", func(ctx context.Context, round int) (n int, err error) {
		err = y.store.Pool().QueryRow(ctx, "select count(*) from report.history where series_hash = $1", y.series[round%3]).Scan(&n)
		return n, err
	})
	y.warm("report_latest_results", "<=200", func(ctx context.Context, round int) (n int, err error) {
		err = y.store.Pool().QueryRow(ctx, "select count(*) from report.latest_results where setting_hash = any($1)", y.hashes[round%3:round%3+10]).Scan(&n)
		return n, err
	})
}
