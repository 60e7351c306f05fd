package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// The kinds of artefact.
const (
	ArtefactCheckpoint = "checkpoint"
	ArtefactImage      = "image"
)

// Artefact is a registered checkpoint or image.
type Artefact struct {
	Digest string // "sha256:<hex>"
	Kind   string
	Name   string // for people; "" for none
	Bytes  int64
	Files  int
	// Manifest lists the files of a folder; [] of a single file.
	Manifest json.RawMessage
	// Accounts may measure it; nil is everybody.
	Accounts []string
	AddedBy  string
	AddedUID int `db:"added_uid"`
	AddedAt  time.Time
}

// ArtefactPlace is where an artefact lies on a site.
type ArtefactPlace struct {
	Digest, Site, Path string
	AddedBy            string
	AddedAt            time.Time
}

const (
	sqlInsertArtefact = `
insert into artefact (digest, kind, name, bytes, files, manifest, accounts, added_by, added_uid, added_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
on conflict (digest) do nothing`
	sqlInsertPlace = `
insert into artefact_place (digest, site, path, added_by, added_at) values ($1, $2, $3, $4, $5)
on conflict (digest, site, path) do nothing`
	sqlArtefact = `
select digest, kind, name, bytes, files, manifest, accounts, added_by, added_uid, added_at from artefact where digest = $1`
	// The manifest of a large checkpoint is asked for by its digest alone.
	sqlArtefacts = `
select digest, kind, name, bytes, files, '[]'::jsonb as manifest, accounts, added_by, added_uid, added_at from artefact
 where ($1 = '' or kind = $1) and ($2::text[] is null or digest = any($2))
 order by added_at, digest`
	sqlArtefactPlaces = `
select digest, site, path, added_by, added_at from artefact_place
 where ($1::text[] is null or digest = any($1)) order by digest, site, added_at desc, path`
	sqlArtefactsAt = `select distinct digest, path from artefact_place where site = $1 and path = any($2)`
	sqlRestrict    = `update artefact set accounts = $2 where digest = $1`
)

// AddArtefact registers an artefact and a place of it. One that is there already
// keeps what it has, and gets the place. It is ErrConflict where the digest is
// registered as the other kind.
func (s *Store) AddArtefact(ctx context.Context, a Artefact, p ArtefactPlace) (created bool, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		tag, err := tx.Exec(ctx, sqlInsertArtefact, a.Digest, a.Kind, a.Name, a.Bytes, a.Files, a.Manifest, a.Accounts, a.AddedBy, a.AddedUID, a.AddedAt)
		if err != nil {
			return err
		}
		created = tag.RowsAffected() == 1
		known, err := collect[Artefact](ctx, tx, "artefact", sqlArtefact, a.Digest)
		if err != nil {
			return err
		}
		if len(known) != 1 || known[0].Kind != a.Kind {
			return fmt.Errorf("%s is registered as another kind of artefact: %w", a.Digest, ErrConflict)
		}
		_, err = tx.Exec(ctx, sqlInsertPlace, a.Digest, p.Site, p.Path, p.AddedBy, p.AddedAt)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("register %s: %w", a.Kind, err)
	}
	return created, nil
}

// Artefact returns an artefact with its manifest.
func (s *Store) Artefact(ctx context.Context, digest string) (Artefact, error) {
	list, err := collect[Artefact](ctx, s.pool, "artefact", sqlArtefact, digest)
	if err != nil {
		return Artefact{}, err
	}
	if len(list) == 0 {
		return Artefact{}, fmt.Errorf("artefact %s: %w", digest, ErrNotFound)
	}
	return list[0], nil
}

// Artefacts returns the artefacts of a kind, "" for both, of the given digests,
// nil for all, in the order in which they came, without their manifests.
func (s *Store) Artefacts(ctx context.Context, kind string, digests []string) ([]Artefact, error) {
	return collect[Artefact](ctx, s.pool, "artefacts", sqlArtefacts, kind, digests)
}

// ArtefactPlaces returns where the artefacts of the given digests, nil for all,
// lie: the latest place of a site first.
func (s *Store) ArtefactPlaces(ctx context.Context, digests []string) ([]ArtefactPlace, error) {
	return collect[ArtefactPlace](ctx, s.pool, "places of artefacts", sqlArtefactPlaces, digests)
}

// ArtefactsAt returns the digests that were registered for paths of a site, by
// path.
func (s *Store) ArtefactsAt(ctx context.Context, site string, paths []string) (map[string][]string, error) {
	rows, err := collect[struct{ Digest, Path string }](ctx, s.pool, "artefacts of paths", sqlArtefactsAt, site, paths)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, r := range rows {
		found[r.Path] = append(found[r.Path], r.Digest)
	}
	return found, nil
}

// RestrictArtefact says who may measure an artefact; nil is everybody.
func (s *Store) RestrictArtefact(ctx context.Context, digest string, accounts []string) error {
	tag, err := s.pool.Exec(ctx, sqlRestrict, digest, accounts)
	if err != nil {
		return fmt.Errorf("restrict artefact %s: %w", digest, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("artefact %s: %w", digest, ErrNotFound)
	}
	return nil
}
