package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sbench/internal/fingerprint"
	"sbench/internal/lifecycle"
)

// Flags are resolved flags by setting_hash and realized image digest.
type Flags map[string]map[string]map[string]string

const (
	sqlSettingFlags = `
select setting_hash, image_digest, flags from setting_flags where setting_hash = any($1)`
	sqlRecordFlags = `
insert into setting_flags (setting_hash, image_digest, flags, run_id, recorded_at)
values ($1, $2, $3, $4, $5) on conflict do nothing`
	sqlKnownFlags = `
select flags from setting_flags where setting_hash = $1 and image_digest = $2`
)

type settingFlags struct {
	SettingHash, ImageDigest string
	Flags                    []byte
}

// SettingFlags returns what the engines of these settings resolved their flags to
// when they were first measured; settings without a valid attempt are missing.
func (s *Store) SettingFlags(ctx context.Context, settings []string) (Flags, error) {
	rows, err := collect[settingFlags](ctx, s.pool, "resolved flags", sqlSettingFlags, settings)
	if err != nil {
		return nil, err
	}
	var out Flags
	for _, r := range rows {
		var flags map[string]string
		if err := json.Unmarshal(r.Flags, &flags); err != nil {
			return nil, fmt.Errorf("read resolved flags of setting %.12s: %w", r.SettingHash, err)
		}
		if out == nil {
			out = Flags{}
		}
		if out[r.SettingHash] == nil {
			out[r.SettingHash] = map[string]map[string]string{}
		}
		out[r.SettingHash][r.ImageDigest] = flags
	}
	return out, nil
}

// agreeOnFlags records the flags of the first valid attempt of a setting, and
// makes invalid what came with others: it may have been frozen before the first
// was known.
func (tx *Tx) agreeOnFlags(ctx context.Context, sealed []Sealed) error {
	first := map[[2]string]map[string]string{}
	for i := range sealed {
		c := &sealed[i]
		flags := fingerprint.ComparableFlags(c.Flags)
		if !c.Attempt.Valid || c.Result == nil || len(flags) == 0 {
			continue
		}
		key := [2]string{c.Attempt.SettingHash, c.ImageDigest}
		if first[key] == nil {
			expected, err := tx.firstFlags(ctx, c, flags)
			if err != nil {
				return err
			}
			first[key] = expected
		}
		c.refuse(fingerprint.CompareFlags(first[key], flags))
	}
	return nil
}

// firstFlags returns what is recorded for the attempt's setting and image, which
// is this attempt's where nothing was.
func (tx *Tx) firstFlags(ctx context.Context, c *Sealed, flags map[string]string) (map[string]string, error) {
	text, err := json.Marshal(flags)
	if err != nil {
		return nil, fmt.Errorf("encode resolved flags: %w", err)
	}
	if _, err := tx.Exec(ctx, sqlRecordFlags, c.Attempt.SettingHash, c.ImageDigest, text, c.Attempt.RunID, tx.now); err != nil {
		return nil, fmt.Errorf("record resolved flags: %w", err)
	}
	if err := tx.QueryRow(ctx, sqlKnownFlags, c.Attempt.SettingHash, c.ImageDigest).Scan(&text); err != nil {
		return nil, fmt.Errorf("read resolved flags: %w", err)
	}
	var expected map[string]string
	if err := json.Unmarshal(text, &expected); err != nil {
		return nil, fmt.Errorf("read resolved flags: %w", err)
	}
	return expected, nil
}

// refuse makes an attempt invalid that differs.
func (c *Sealed) refuse(items []fingerprint.Item) {
	var lines, names []string
	for _, i := range items {
		if i.Refuses() {
			lines, names = append(lines, i.Line()), append(names, i.Name)
			c.Attempt.Checks = append(c.Attempt.Checks, i.Check())
		}
	}
	if len(lines) == 0 {
		return
	}
	a := &c.Attempt
	a.Valid, a.EnvVerified, a.ExitClass, a.Signature = false, false, lifecycle.ExitDriftArtefact, "drift "+strings.Join(names, ", ")
	a.Reasons = append(lines, slices.Clone(a.Reasons)...)
	c.Result.Valid, c.Result.EnvVerified = false, false
}
