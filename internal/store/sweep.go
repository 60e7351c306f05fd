package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"sbench/internal/lifecycle"
	"sbench/internal/quality"
	"sbench/internal/setting"
)

// NewSweep is an admitted submission.
type NewSweep struct {
	Name     string
	UserName string
	UID      int
	Account  string
	Site     string
	Priority string // urgent, normal, bulk; "" is normal
	// IdempotencyKey makes a repeated submission of the same user return the
	// first one's sweep; "" for none.
	IdempotencyKey string
	File           string          // the sweep file as submitted
	Options        json.RawMessage // what came with it; nil for none
	Repeats        json.RawMessage // the repeat policy; nil for none
	SLO            map[string]time.Duration
	MaxErrorRate   float64
	Quality        *quality.Definition // what is asked after each measurement; nil for nothing
	HardwareClass  string              // of the site: real, emulated
	GPUHours       *float64            // forecast of held GPUs
	BeginAt        *time.Time          // not planned before
	Held           bool                // not planned until released
	Dependency     string              // what it waits for, as --dependency was written; "" for nothing
	MailTypes      []string            // the events that mail is sent for; nil for none
	MailUser       string              // to whom; "" for UserName
	Budget         lifecycle.Budget
	Settings       []NewSetting // in their order; no hash twice
}

// NewSetting is one setting of a sweep, with the number of its runs.
type NewSetting struct {
	Hash, SeriesHash string
	CanonicalSpec    []byte // the bytes whose SHA-256 is Hash
	Setting          setting.Setting
	Repeats          int
	RepeatsMax       int // up to which runs may be added; 0 where the number is fixed
	FirstRepeat      int // what its repeats count from
	// Nodes are those that its runs are for, in turn; nil for any. EachNode: it has
	// as many runs as there were nodes to be on.
	Nodes    []string
	EachNode bool
	Carried  *Carried // nil where no older result stands for it
}

// runs is how many runs the setting gets now.
func (n *NewSetting) runs() int {
	if n.Carried != nil && !n.Carried.Canary {
		return 0
	}
	return n.Repeats
}

// node is the node that a run is for; "" for any.
func (n *NewSetting) node(repeat int) string {
	if len(n.Nodes) == 0 {
		return ""
	}
	return n.Nodes[repeat%len(n.Nodes)]
}

const (
	sqlInsertSweep = `
insert into sweep (name, user_name, uid, account, site, priority, idempotency_key, request_digest, file, options,
                   repeats, slo, max_error_rate, hardware_class, gpu_hours, begin_at, submitted_at, changed_at,
                   n_settings, n_runs, dependency, dependency_state, mail_types, mail_user, quality, quality_hash)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $17, $18, $19, $20,
        case when $20 = '' then 'met' else 'waiting' end, $21, $22, $23, $24)
on conflict (uid, idempotency_key) do nothing
returning id`
	sqlSweepOfKey     = `select id, request_digest from sweep where uid = $1 and idempotency_key = $2`
	sqlInsertSettings = `
insert into setting (setting_hash, series_hash, canonical_spec)
select * from unnest($1::text[], $2::text[], $3::json[])
on conflict (setting_hash) do nothing`
)

// CreateSweep stores a sweep, its settings and its runs in one transaction.
// created is false where the idempotency key was known: id is then the first
// one's. The error is ErrConflict where the key came with another request, and
// a QuotaError where a quota has no room for the forecast.
func (s *Store) CreateSweep(ctx context.Context, n NewSweep) (id int64, created bool, err error) {
	digest, err := n.digest()
	if err != nil {
		return 0, false, err
	}
	err = s.WithTx(ctx, func(tx *Tx) error {
		id, created, err = tx.createSweep(ctx, n, digest)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("create sweep %s: %w", n.Name, err)
	}
	return id, created, nil
}

// digest tells whether two requests ask for the same.
func (n NewSweep) digest() (string, error) {
	h := sha256.New()
	options, err := json.Marshal([]any{n.Name, n.Account, n.Site, n.Priority, n.File, n.Options, n.Held, n.BeginAt})
	if err != nil {
		return "", fmt.Errorf("encode options of sweep %s: %w", n.Name, err)
	}
	h.Write(options)
	for _, c := range n.Settings {
		repeats := c.Repeats
		if c.EachNode { // a node that came back between two tries makes no other request
			repeats = 0
		}
		fmt.Fprintf(h, "%s %d %d\n", c.Hash, repeats, c.RepeatsMax)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (tx *Tx) createSweep(ctx context.Context, n NewSweep, digest string) (id int64, created bool, err error) {
	runs, wanted := 0, 0
	for i := range n.Settings {
		runs, wanted = runs+n.Settings[i].runs(), wanted+n.Settings[i].Repeats
	}
	if wanted == 0 {
		return 0, false, errors.New("no runs")
	}
	var key *string
	if n.IdempotencyKey != "" {
		key = &n.IdempotencyKey
	}
	slo := n.SLO
	if slo == nil {
		slo = map[string]time.Duration{}
	}
	options := n.Options
	if options == nil {
		options = json.RawMessage(`{}`)
	}
	err = tx.QueryRow(ctx, sqlInsertSweep, n.Name, n.UserName, n.UID, n.Account, n.Site, cmp.Or(n.Priority, "normal"),
		key, digest, n.File, options, n.Repeats, slo, n.MaxErrorRate, n.HardwareClass, n.GPUHours, n.BeginAt, tx.now,
		len(n.Settings), runs, n.Dependency, texts(n.MailTypes), cmp.Or(n.MailUser, n.UserName), n.Quality, n.Quality.Hash()).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		var first string
		if err := tx.QueryRow(ctx, sqlSweepOfKey, n.UID, n.IdempotencyKey).Scan(&id, &first); err != nil {
			return 0, false, err
		}
		if first != digest {
			return 0, false, fmt.Errorf("sweep %d: %w", id, ErrConflict)
		}
		return id, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	if err := tx.reserve(ctx, id, &n); err != nil {
		return 0, false, err
	}
	if err := tx.insertSettings(ctx, n.Settings); err != nil {
		return 0, false, err
	}
	if err := tx.copyRuns(ctx, id, n, runs); err != nil {
		return 0, false, err
	}
	if runs == 0 { // every result is carried: there is nothing to wait for
		if _, err := tx.Exec(ctx, sqlEndSweeps, []int64{id}, tx.now); err != nil {
			return 0, false, fmt.Errorf("end sweep: %w", err)
		}
	}
	return id, true, nil
}

func (tx *Tx) insertSettings(ctx context.Context, settings []NewSetting) error {
	// In the order of their hashes, so that two submissions of the same settings
	// wait for each other instead of deadlocking.
	sorted := slices.SortedFunc(slices.Values(settings), func(a, b NewSetting) int { return strings.Compare(a.Hash, b.Hash) })
	hashes, series, specs := make([]string, len(sorted)), make([]string, len(sorted)), make([]string, len(sorted))
	for i, c := range sorted {
		hashes[i], series[i], specs[i] = c.Hash, c.SeriesHash, string(c.CanonicalSpec)
	}
	if _, err := tx.Exec(ctx, sqlInsertSettings, hashes, series, specs); err != nil {
		return fmt.Errorf("insert settings: %w", err)
	}
	return nil
}

// runColumns is the order in which new runs are copied.
var runColumns = []string{"sweep_id", "setting_hash", "repeat", "budget_attempts", "budget_free", "held", "state", "actor", "changed_at"}

func (tx *Tx) copyRuns(ctx context.Context, id int64, n NewSweep, runs int) error {
	_, err := tx.CopyFrom(ctx, pgx.Identifier{"sweep_setting"},
		[]string{"sweep_id", "setting_hash", "ordinal", "repeats", "setting", "settled", "carried_from", "canary", "stratum", "carried_repeats", "repeats_max", "adding"},
		pgx.CopyFromSlice(len(n.Settings), func(i int) ([]any, error) {
			c := &n.Settings[i]
			text, err := json.Marshal(&c.Setting)
			row := []any{id, c.Hash, int32(i), int32(c.runs()), text, c.runs() == 0, nil, false, "", int32(0)}
			if c.Carried != nil {
				row = append(row[:6], c.Carried.Aggregate, c.Carried.Canary, c.Carried.Stratum, int32(c.Repeats))
			}
			adding := AddingNone
			if c.RepeatsMax > 0 {
				adding = AddingOpen
			}
			return append(row, int32(c.RepeatsMax), string(adding)), err
		}))
	if err != nil {
		return fmt.Errorf("copy settings: %w", err)
	}
	budget := n.Budget
	if budget == (lifecycle.Budget{}) {
		budget = lifecycle.DefaultBudget()
	}
	next, repeat := 0, 0
	_, err = tx.CopyFrom(ctx, pgx.Identifier{"run"},
		append(slices.Clone(runColumns), "node"),
		pgx.CopyFromFunc(func() ([]any, error) {
			for next < len(n.Settings) && repeat == n.Settings[next].runs() {
				next, repeat = next+1, 0
			}
			if next == len(n.Settings) {
				return nil, nil
			}
			row := []any{
				id, n.Settings[next].Hash, int32(n.Settings[next].FirstRepeat + repeat), int32(budget.Attempts), int32(budget.Free), n.Held,
				string(lifecycle.RunPending), string(lifecycle.ActorAdmit), tx.now, n.Settings[next].node(repeat),
			}
			repeat++
			return row, nil
		}))
	if err != nil {
		return fmt.Errorf("copy %d runs: %w", runs, err)
	}
	return nil
}

// SweepState is what became of a sweep as a whole.
type SweepState string

// The sweep states.
const (
	SweepActive     SweepState = "active"     // something may still happen
	SweepComplete   SweepState = "complete"   // over; every run complete or skipped
	SweepIncomplete SweepState = "incomplete" // over; some run failed or dead
	SweepCancelled  SweepState = "cancelled"  // over; some run cancelled, and none failed or dead
)

// Sweep is a sweep as it was admitted, and what became of it.
type Sweep struct {
	ID            int64
	Name          string
	UserName      string
	UID           int `db:"uid"`
	Account       string
	Site          string
	Priority      string
	Options       json.RawMessage // as NewSweep gave it
	Repeats       json.RawMessage // nil where there is no policy
	SLO           map[string]time.Duration
	MaxErrorRate  float64
	Quality       *quality.Definition // nil where nothing is asked
	HardwareClass string
	BeginAt       *time.Time
	SubmittedAt   time.Time
	State         SweepState
	EndedAt       *time.Time
}

const sqlSweeps = `
select id, name, user_name, uid, account, site, priority, options, repeats, slo, max_error_rate, quality, hardware_class,
       begin_at, submitted_at, state, ended_at
  from sweep where id = any($1) order by id`

// Sweeps returns the sweeps of these ids that exist.
func (s *Store) Sweeps(ctx context.Context, ids ...int64) ([]Sweep, error) {
	return collect[Sweep](ctx, s.pool, "sweeps", sqlSweeps, ids)
}

// Sweep returns one sweep, or ErrNotFound.
func (s *Store) Sweep(ctx context.Context, id int64) (Sweep, error) {
	list, err := s.Sweeps(ctx, id)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("sweep %d: %w", id, ErrNotFound)
	}
	if err != nil {
		return Sweep{}, err
	}
	return list[0], nil
}

// given is nil for the zero value.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
