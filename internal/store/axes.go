package store

import (
	"context"
	"sync"

	"sbench/internal/setting"
)

// maxCachedAxes bounds the memory of an axesCache, to some 10 MB.
const maxCachedAxes = 4096

// axesCache keeps the axes of settings of sweeps, which never change, as they go
// into results: the runs of a setting end one by one. It is safe for concurrent use.
type axesCache struct {
	mu    sync.Mutex
	known map[SettingKey][]any
}

// rows returns the axes of settings, which the caller must not change.
func (c *axesCache) rows(ctx context.Context, q querier, keys []SettingKey) (map[SettingKey][]any, error) {
	found := make(map[SettingKey][]any, len(keys))
	var sweeps []int64
	var hashes []string
	c.mu.Lock()
	for _, k := range keys {
		if _, asked := found[k]; asked {
			continue
		}
		row, ok := c.known[k]
		found[k] = row
		if !ok {
			sweeps, hashes = append(sweeps, k.SweepID), append(hashes, k.SettingHash)
		}
	}
	c.mu.Unlock()
	if len(sweeps) == 0 {
		return found, nil
	}
	type stored struct {
		SweepID     int64
		SettingHash string
		Setting     setting.Setting
	}
	list, err := collect[stored](ctx, q, "settings", sqlSettingsOfKeys, sweeps, hashes)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known)+len(list) > maxCachedAxes {
		c.known = make(map[SettingKey][]any, len(list))
	}
	for i := range list {
		k := SettingKey{list[i].SweepID, list[i].SettingHash}
		row, err := axisRow(&list[i].Setting)
		if err != nil {
			return nil, err
		}
		c.known[k], found[k] = row, row
	}
	return found, nil
}
