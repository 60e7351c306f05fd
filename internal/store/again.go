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
}

const (
	sqlAdmittedSettings = `
select ss.setting_hash as hash, c.series_hash, c.canonical_spec, ss.setting
  from sweep_setting ss join setting c using (setting_hash)
 where ss.sweep_id = $1 and ss.setting_hash = any($2) order by ss.ordinal`
	sqlInsertConfirmation = `insert into confirmation (sweep_id, of_sweep, created_at) values ($1, $2, $3) on conflict do nothing`
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
// about the sweep of. Its results are no night of any history.
func (s *Store) CreateConfirmation(ctx context.Context, n NewSweep, of int64) (id int64, created bool, err error) {
	digest, err := n.digest()
	if err != nil {
		return 0, false, err
	}
	err = s.WithTx(ctx, func(tx *Tx) error {
		var err error
		if id, created, err = tx.createSweep(ctx, n, digest); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlInsertConfirmation, id, of, tx.now)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("create confirmation of sweep %d: %w", of, err)
	}
	return id, created, nil
}
