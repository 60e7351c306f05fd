package store_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"sbench/internal/pgtest"
	"sbench/internal/setting"
	"sbench/internal/store"
)

// TestReport_DocumentedQueries executes every query of the manual, as a role that may
// read the views and nothing else.
func TestReport_DocumentedQueries(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	queries := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(queries) < 7 {
		t.Fatalf("%d queries in docs/sql.md", len(queries))
	}
	s := pgtest.New(t)
	id, runs := create(t, s, sweepOf("", 1, 2))
	submit(t, s, batchToken, runs)
	conn, err := s.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`begin`)
	exec(`create role report_reader`)
	exec(`grant usage on schema report to report_reader`)
	exec(`grant select on all tables in schema report to report_reader`)
	exec(`set local role report_reader`)
	for _, q := range queries {
		rows, err := conn.Query(t.Context(), q[1])
		if err != nil {
			t.Fatalf("%s: %v", q[1], err)
		}
		for rows.Next() {
			if _, err := rows.Values(); err != nil {
				t.Fatal(err)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatalf("%s: %v", q[1], err)
		}
	}
	var name string
	if err := conn.QueryRow(t.Context(), `select name from report.sweeps where sweep_id = $1`, id).Scan(&name); err != nil || name != "nightly" {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := conn.Exec(t.Context(), `update report.sweeps set name = 'x'`); err == nil {
		t.Error("a reader may write")
	}
	exec(`rollback`)
}

// TestVerifyReport: every view is documented, and what a table has of axes and
// metrics its view has.
func TestVerifyReport(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	rows, err := s.Pool().Query(t.Context(), `select table_name || '.' || column_name from information_schema.columns where table_schema = 'report'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, views := map[string]bool{}, map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		columns[name] = true
		view, _, _ := strings.Cut(name, ".")
		views[view] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, a := range setting.Axes() {
		if !columns["latest_results."+a.Column] {
			t.Errorf("report.latest_results lacks %s: a migration has to make the view again", a.Column)
		}
	}
	for _, c := range store.TableColumns()["aggregate"] {
		if !columns["latest_results."+c.Name] {
			t.Errorf("report.latest_results lacks %s: a migration has to make the view again", c.Name)
		}
	}
	text, err := os.ReadFile("../../docs/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	for view := range views {
		if !strings.Contains(string(text), "`report."+view+"`") {
			t.Errorf("docs/sql.md does not describe report.%s", view)
		}
	}
}

// TestReport_LatestResultsOfOneSetting: the condition selects settings before the
// latest summary of each is looked up, of 6,000 in a year of results.
func TestReport_LatestResultsOfOneSetting(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	rows, err := s.Pool().Query(t.Context(), `explain select * from report.latest_results where setting_hash = 'abc'`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(lines, "\n")
	if strings.Contains(plan, "l.setting_hash = 'abc'") || !strings.Contains(plan, "setting_hash = 'abc'") {
		t.Errorf("got\n%s", plan)
	}
}
