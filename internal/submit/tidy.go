package submit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sbench/internal/batch"
)

const (
	tidyEvery = time.Hour
	// orphanAge is how old what nobody knows must be before it is removed: a
	// batch's folder is there before its row.
	orphanAge = time.Hour
)

// tidy removes what killed daemons left in the spool: half-written folders, and
// batches that were never committed. Folders of committed batches stay.
func (s *Service) tidy(ctx context.Context) error {
	now := s.Now()
	if now.Before(s.tidied.Add(tidyEvery)) {
		return nil
	}
	s.tidied = now
	var orphans, tokens []string
	for _, dir := range []string{filepath.Dir(s.Site.BatchDir("x")), filepath.Dir(s.Site.BinDir("x"))} {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("tidy spool: %w", err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !e.IsDir() || now.Sub(info.ModTime()) < orphanAge {
				continue
			}
			switch {
			case strings.HasPrefix(e.Name(), "."):
				orphans = append(orphans, filepath.Join(dir, e.Name()))
			case batch.IsToken(e.Name()):
				tokens = append(tokens, e.Name())
			}
		}
	}
	known, err := s.Store.Batches(ctx, tokens...)
	if err != nil {
		return err
	}
	committed := map[string]bool{}
	for _, b := range known {
		committed[b.Token] = true
	}
	for _, token := range tokens {
		if !committed[token] {
			orphans = append(orphans, s.Site.BatchDir(token))
		}
	}
	var errs []error
	for _, dir := range orphans {
		s.Log.InfoContext(ctx, "removing what was never submitted", "dir", dir)
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
