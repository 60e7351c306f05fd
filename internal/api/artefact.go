package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// The kinds of artefact.
const (
	ArtefactCheckpoint = "checkpoint"
	ArtefactImage      = "image"
)

// ArtefactRequest is the body of POST /v1/artefacts: what the caller hashed.
type ArtefactRequest struct {
	Kind   string `json:"kind"` // checkpoint, image
	Site   string `json:"site"` // "" where there is only one
	Path   string `json:"path"` // absolute, as the site's nodes see it
	Name   string `json:"name"` // for people; "" for none
	Digest string `json:"digest"`
	Bytes  int64  `json:"size_bytes"`
	Files  int    `json:"files"`
	// Manifest lists the files of a folder; the digest is that of its lines.
	Manifest []ArtefactFile `json:"manifest"`
	// Accounts may measure it; null is everybody.
	Accounts []string `json:"accounts"`
}

// ArtefactFile is a file of a folder.
type ArtefactFile struct {
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Size   int64  `json:"size"`   // bytes
	Path   string `json:"path"`   // relative, with slashes
}

// Artefact is a registered checkpoint or image.
type Artefact struct {
	Digest   string          `json:"digest"`
	Kind     string          `json:"kind"`
	Name     string          `json:"name"`
	Bytes    int64           `json:"size_bytes"`
	Files    int             `json:"files"`
	Accounts []string        `json:"accounts"` // null: everybody
	AddedBy  string          `json:"added_by"`
	AddedAt  time.Time       `json:"added_at"`
	Places   []ArtefactPlace `json:"places"`
	Manifest []ArtefactFile  `json:"manifest"` // of one that is asked for by its digest
	// Created says, in the answer to its registration, that it was not known.
	Created bool `json:"created"`
}

// ArtefactPlace is where an artefact lies on a site.
type ArtefactPlace struct {
	Site    string    `json:"site"`
	Path    string    `json:"path"`
	AddedBy string    `json:"added_by"`
	AddedAt time.Time `json:"added_at"`
}

// RestrictRequest is the body of POST /v1/artefacts/{digest}/accounts.
type RestrictRequest struct {
	Accounts []string `json:"accounts"` // null: everybody
}

// AddArtefact registers an artefact, or another place of a known one.
func (c *Client) AddArtefact(ctx context.Context, req ArtefactRequest) (Artefact, error) {
	return call[Artefact](ctx, c, http.MethodPost, "/v1/artefacts", nil, req)
}

// Artefacts lists the artefacts of a kind; "" is both.
func (c *Client) Artefacts(ctx context.Context, kind string) ([]Artefact, error) {
	q := url.Values{}
	if kind != "" {
		q.Set("kind", kind)
	}
	return call[[]Artefact](ctx, c, http.MethodGet, "/v1/artefacts", q, nil)
}

// Artefact returns one with its manifest.
func (c *Client) Artefact(ctx context.Context, digest string) (Artefact, error) {
	return call[Artefact](ctx, c, http.MethodGet, "/v1/artefacts/"+url.PathEscape(digest), nil, nil)
}

// RestrictArtefact says which accounts may measure an artefact; nil is everybody.
func (c *Client) RestrictArtefact(ctx context.Context, digest string, accounts []string) (Artefact, error) {
	return call[Artefact](ctx, c, http.MethodPost, "/v1/artefacts/"+url.PathEscape(digest)+"/accounts", nil, RestrictRequest{accounts})
}
