package store

import (
	"context"
	"encoding/json"
	"fmt"

	"sbench/internal/setting"
)

// Again names a setting of an admitted sweep that is to run again.
type Again struct {
	SweepID     int64
	SettingHash string
	Runs        int
	// Spread asks for its runs on different nodes.
	Spread bool
}

// Spread is how the runs again of a setting were spread over nodes.
type Spread struct {
	Nodes  []string `json:"nodes"`  // in turn
	Reason string   `json:"reason"` // why they were not; "" where they were
}

const (
	sqlAdmittedSettings = `
select ss.setting_hash as hash, c.series_hash, c.canonical_spec, ss.setting
  from sweep_setting ss join setting c using (setting_hash)
 where ss.sweep_id = $1 and ss.setting_hash = any($2) order by ss.ordinal`
	sqlInsertConfirmation = `insert into confirmation (sweep_id, of_sweep, created_at, spread) values ($1, $2, $3, $4) on conflict do nothing`
	sqlSpread             = `select spread from confirmation where sweep_id = $1`
	sqlWaitingForNode     = `select id, node from run where sweep_id = $1 and node <> '' and state in ('pending', 'submitted') and cancel_requested_at is null order by id`
	// The latest sweep of a site that has each setting.
	sqlSweepsOf = `
select distinct on (ss.setting_hash) ss.setting_hash, ss.sweep_id
  from sweep_setting ss join sweep s on s.id = ss.sweep_id
 where ss.setting_hash = any($1) and s.site = $2 and s.hardware_class = $3
 order by ss.setting_hash, ss.sweep_id desc`
)

// AdmittedSettings returns settings of a sweep as they were admitted, in its
// order, without repeats. Hashes that the sweep does not have are missing.
func (s *Store) AdmittedSettings(ctx context.Context, sweep int64, hashes []string) ([]NewSetting, error) {
	type row struct {
		Hash, SeriesHash string
		CanonicalSpec    json.RawMessage
		Setting          setting.Setting
	}
	list, err := collect[row](ctx, s.pool, "settings", sqlAdmittedSettings, sweep, hashes)
	if err != nil {
		return nil, err
	}
	out := make([]NewSetting, len(list))
	for i, r := range list {
		out[i] = NewSetting{Hash: r.Hash, SeriesHash: r.SeriesHash, CanonicalSpec: r.CanonicalSpec, Setting: r.Setting}
	}
	return out, nil
}

// SweepsOf returns the latest sweep of a site that has each setting, by hash.
func (s *Store) SweepsOf(ctx context.Context, hashes []string, site, class string) (map[string]int64, error) {
	type row struct {
		SettingHash string
		SweepID     int64
	}
	list, err := collect[row](ctx, s.pool, "sweeps of settings", sqlSweepsOf, hashes, site, class)
	if err != nil {
		return nil, err
	}
	out := make(map[string]int64, len(list))
	for _, r := range list {
		out[r.SettingHash] = r.SweepID
	}
	return out, nil
}

// CreateConfirmation is CreateSweep for a sweep that runs settings again to decide
// about the sweep of. Its results are no night of any history. spread says, by
// setting, how the runs were spread over nodes; nil for nothing that was asked for.
func (s *Store) CreateConfirmation(ctx context.Context, n NewSweep, of int64, spread map[string]Spread) (id int64, created bool, err error) {
	if spread == nil {
		spread = map[string]Spread{}
	}
	digest, err := n.digest()
	if err != nil {
		return 0, false, err
	}
	err = s.WithTx(ctx, func(tx *Tx) error {
		var err error
		if id, created, err = tx.createSweep(ctx, n, digest); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlInsertConfirmation, id, of, tx.now, spread)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("create confirmation of sweep %d: %w", of, err)
	}
	return id, created, nil
}

// SpreadOf returns how the runs again of a confirmation were spread over nodes, by
// setting. Settings for which that was not asked are missing.
func (s *Store) SpreadOf(ctx context.Context, confirmation int64) (map[string]Spread, error) {
	list, err := collect[struct{ Spread map[string]Spread }](ctx, s.pool, "spread", sqlSpread, confirmation)
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("confirmation %d: %w", confirmation, err)
	}
	return list[0].Spread, nil
}

// WaitingForNode is a run that is for one node and has not started.
type WaitingForNode struct {
	ID   int64
	Node string
}

// WaitingForNodes returns the runs of a sweep that are for one node each and have
// not started.
func (s *Store) WaitingForNodes(ctx context.Context, sweep int64) ([]WaitingForNode, error) {
	return collect[WaitingForNode](ctx, s.pool, "runs that wait for a node", sqlWaitingForNode, sweep)
}
