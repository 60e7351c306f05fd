package collect_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sbench/internal/lifecycle"
	"sbench/internal/result"
	"sbench/internal/setting"
)

// duckDBEnv names a folder in which npm has installed @duckdb/node-api.
const duckDBEnv = "SBENCH_DUCKDB"

// ask is a program for node that prints the rows of the query on its standard
// input as JSON, as text where JSON has no such value.
const ask = `
const { DuckDBInstance } = require("@duckdb/node-api");
(async () => {
  const connection = await (await DuckDBInstance.create(":memory:")).connect();
  const sql = require("fs").readFileSync(0, "utf8");
  console.log(JSON.stringify((await connection.runAndReadAll(sql)).getRowObjectsJson()));
})().catch((e) => { console.error(e.message); process.exit(1); });
`

type duckDB struct {
	t           testing.TB
	folder, dir string // of the package, and which the queries' paths are relative to
}

func (d duckDB) query(sql string, rows any) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), "node", "-e", ask)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(d.folder, "node_modules"))
	cmd.Stdin = strings.NewReader(sql)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("%s: %v: %s", sql, err, stderr.String())
	}
	must(d.t, json.Unmarshal(out, rows))
}

// TestDataset_DuckDB: another engine reads what was compacted in place, by the
// queries of the manual, and finds the numbers that the attempts reported.
func TestDataset_DuckDB(t *testing.T) {
	t.Parallel()
	folder := os.Getenv(duckDBEnv)
	if folder == "" {
		t.Skip("SKIPPED: DuckDB is not there: make duckdb fetches it")
	}
	text, err := os.ReadFile("../../docs/dataset.md")
	must(t, err)
	queries := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(queries) != 3 {
		t.Fatalf("%d queries in docs/dataset.md", len(queries))
	}
	const settings, repeats, requests, valid = 4, 3, 50, 10
	l := newLab(t, settings, repeats)
	l.requests = requests
	ttft := map[string]float64{} // of each attempt, in seconds
	for i, run := range l.runs {
		m := l.manifest(run, int64(100+i), lifecycle.ExitMeasured)
		if i%4 == 3 { // on the next day
			m.Attempt.StartedAt, m.Attempt.EndedAt = m.Attempt.StartedAt.Add(24*time.Hour), m.Attempt.EndedAt.Add(24*time.Hour)
		}
		m.Valid = i%5 != 4
		l.seal(m, func(j int) int64 { return int64(20 + 7*i + j%13) }, func(r *result.Result) {
			r.Axes = map[string]any{"model.name": fmt.Sprint("model-", i/repeats), "hardware.gpu": "h100-sxm", "engine.args": map[string]string{"max-num-seqs": "256"}}
			if r.Valid {
				ttft[fmt.Sprint(m.Attempt.SettingHash, " ", m.Attempt.Repeat)] = *r.Metrics["ttft_p50"]
			}
		})
	}
	l.tick()
	if l.compact("") {
		t.Fatal("died")
	}
	_, s := l.keeper()
	db := duckDB{t: t, folder: folder, dir: filepath.Dir(s.DatasetDir())}

	var columns []struct {
		Name string `json:"column_name"`
	}
	db.query("describe select * from read_parquet('dataset/result/*/*.parquet', hive_partitioning = true)", &columns)
	has := map[string]bool{}
	for _, c := range columns {
		has[c.Name] = true
	}
	for _, a := range setting.Axes() {
		if !has[a.Column] {
			t.Errorf("no column %s", a.Column)
		}
	}
	var groups []struct {
		Model      string  `json:"model_name"`
		Attempts   int     `json:"attempts,string"`
		Throughput float64 `json:"median_output_tokens_per_s"`
	}
	db.query(strings.Replace(queries[0][1], "'real'", "'emulated'", 1), &groups)
	n := 0
	for _, g := range groups {
		n += g.Attempts
		if g.Throughput <= 0 {
			t.Errorf("got %+v", g)
		}
	}
	if len(groups) != settings || n != valid {
		t.Errorf("%d attempts of %d models, want %d of %d", n, len(groups), valid, settings)
	}
	var again []struct {
		Hash     string  `json:"setting_hash"`
		Repeat   int     `json:"repeat,string"`
		Requests int     `json:"requests,string"`
		Reported float64 `json:"ttft_p50"`
		Again    float64 `json:"again"`
	}
	db.query(queries[1][1], &again)
	for _, r := range again {
		want := ttft[fmt.Sprint(r.Hash, " ", r.Repeat)]
		if r.Requests != requests || r.Reported != want || math.Abs(r.Again-want) > 1e-9 {
			t.Errorf("got %+v, want %v", r, want)
		}
	}
	if len(again) != valid || len(ttft) != valid {
		t.Errorf("%d attempts, want %d", len(again), valid)
	}
	// The engine opens the files of the days that were asked for, and no others.
	var plan []struct {
		Text string `json:"explain_value"`
	}
	db.query(queries[2][1], &plan)
	if len(plan) != 1 || !strings.Contains(plan[0].Text, "Scanning Files: 1/2") {
		t.Errorf("got %+v", plan)
	}
}
