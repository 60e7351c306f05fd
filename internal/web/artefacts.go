package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/runner/stage"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/store"
)

const (
	maxManifest = 100_000 // files of one artefact
	maxAccounts = 1000
)

var (
	digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	hexForm    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// addArtefact registers what the caller hashed. It proves nothing: the node that
// measures the artefact hashes it again.
func (s *server) addArtefact(r *http.Request, who auth.Identity) (any, error) {
	var req api.ArtefactRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := checkArtefact(&req); err != nil {
		return nil, err
	}
	st, err := s.siteOrOnly(req.Site)
	if err != nil {
		return nil, err
	}
	if st.SubmitAs == site.SubmitAsService && req.Kind == api.ArtefactImage && !who.Operator {
		return nil, refused(nil, "on site %s only operators register images: jobs run under a service account", st.Name)
	}
	ctx, now := r.Context(), s.Now().UTC()
	manifest, err := json.Marshal(nonNil(req.Manifest))
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	created, err := s.Store.AddArtefact(ctx, store.Artefact{
		Digest: req.Digest, Kind: req.Kind, Name: req.Name, Bytes: req.Bytes, Files: req.Files, Manifest: manifest,
		Accounts: req.Accounts, AddedBy: who.User, AddedUID: who.UID, AddedAt: now,
	}, store.ArtefactPlace{Site: st.Name, Path: req.Path, AddedBy: who.User, AddedAt: now})
	if err != nil {
		return nil, err
	}
	s.Log.InfoContext(ctx, "artefact registered", "kind", req.Kind, "digest", req.Digest, "site", st.Name, "path", req.Path, "user", who.User, "new", created)
	a, err := s.artefact(ctx, req.Digest)
	a.Created, a.Manifest = created, nil
	return a, err
}

// siteOrOnly finds a site by name, or the only one.
func (s *server) siteOrOnly(name string) (*site.Site, error) {
	switch {
	case name != "":
		st, err := s.site(name)
		if err != nil {
			return nil, invalid("no such site: %q (sites: %s)", name, strings.Join(s.siteNames(), ", "))
		}
		return st, nil
	case len(s.Sites) == 1:
		return s.Sites[0], nil
	}
	return nil, &api.Problem{Code: api.CodeInvalid, Message: "several sites are there and none is named", Hint: "--site takes one of " + strings.Join(s.siteNames(), ", ")}
}

func checkArtefact(req *api.ArtefactRequest) error {
	switch {
	case req.Kind != api.ArtefactCheckpoint && req.Kind != api.ArtefactImage:
		return invalid("kind %q is neither checkpoint nor image", clipped(req.Kind))
	case !digestForm.MatchString(req.Digest):
		return invalid("digest %q is not sha256: and 64 hexadecimal digits", clipped(req.Digest))
	case !path.IsAbs(req.Path) || path.Clean(req.Path) != req.Path || len(req.Path) > maxFileName || setting.CheckText(req.Path) != "":
		return invalid("path %q is not an absolute path", clipped(req.Path))
	case len(req.Name) > 200 || req.Name != "" && !nameForm.MatchString(req.Name):
		return invalid("name %q has other signs than letters, digits and . _ @ + -", clipped(req.Name))
	case req.Bytes < 0 || req.Files < 1 || len(req.Manifest) > maxManifest:
		return invalid("size and number of files make no sense: %d bytes in %d files", req.Bytes, req.Files)
	case req.Kind == api.ArtefactImage && len(req.Manifest) > 0:
		return invalid("an image is one file: a folder is a sandbox, whose content can change while a sweep runs")
	case len(req.Manifest) == 0 && req.Files != 1:
		return invalid("%d files, and no manifest of them", req.Files)
	}
	if err := checkAccounts(req.Accounts); err != nil {
		return err
	}
	return checkManifest(req)
}

// checkManifest sees that the digest is the manifest's.
func checkManifest(req *api.ArtefactRequest) error {
	if len(req.Manifest) == 0 {
		return nil
	}
	h := sha256.New()
	var bytes int64
	for i, f := range req.Manifest {
		if !hexForm.MatchString(f.SHA256) || f.Size < 0 || f.Path == "" || strings.ContainsAny(f.Path, "\n\r") {
			return invalid("file %d of the manifest makes no sense", i+1)
		}
		if i > 0 && f.Path <= req.Manifest[i-1].Path {
			return invalid("the manifest is not sorted by path: %q", clipped(f.Path))
		}
		_, _ = io.WriteString(h, stage.Entry(f).Line()) // never fails
		bytes += f.Size
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != req.Digest || bytes != req.Bytes || len(req.Manifest) != req.Files {
		return invalid("the manifest is not that of the digest: it has %s, %d files and %d bytes", got, len(req.Manifest), bytes)
	}
	return nil
}

func checkAccounts(accounts []string) error {
	if len(accounts) > maxAccounts {
		return invalid("more than %d accounts", maxAccounts)
	}
	for _, a := range accounts {
		if len(a) > maxOption || !nameForm.MatchString(a) {
			return invalid("%q is not the name of an account", clipped(a))
		}
	}
	return nil
}

func (s *server) listArtefacts(r *http.Request, _ auth.Identity) (any, error) {
	kind := r.URL.Query().Get("kind")
	if !slices.Contains([]string{"", api.ArtefactCheckpoint, api.ArtefactImage}, kind) {
		return nil, invalid("kind %q is neither checkpoint nor image", clipped(kind))
	}
	list, err := s.Store.Artefacts(r.Context(), kind, nil)
	if err != nil {
		return nil, err
	}
	places, err := s.Store.ArtefactPlaces(r.Context(), nil)
	if err != nil {
		return nil, err
	}
	out := make([]api.Artefact, len(list))
	for i, a := range list {
		out[i] = artefactOf(a, places)
	}
	return out, nil
}

func (s *server) showArtefact(r *http.Request, _ auth.Identity) (any, error) {
	return s.artefact(r.Context(), r.PathValue("digest"))
}

func (s *server) artefact(ctx context.Context, digest string) (api.Artefact, error) {
	a, err := s.Store.Artefact(ctx, digest)
	if err != nil {
		return api.Artefact{}, err
	}
	places, err := s.Store.ArtefactPlaces(ctx, []string{digest})
	if err != nil {
		return api.Artefact{}, err
	}
	out := artefactOf(a, places)
	if err := json.Unmarshal(a.Manifest, &out.Manifest); err != nil {
		return out, fmt.Errorf("read manifest of %s: %w", digest, err)
	}
	return out, nil
}

func artefactOf(a store.Artefact, places []store.ArtefactPlace) api.Artefact {
	out := api.Artefact{
		Digest: a.Digest, Kind: a.Kind, Name: a.Name, Bytes: a.Bytes, Files: a.Files, Accounts: a.Accounts,
		AddedBy: a.AddedBy, AddedAt: a.AddedAt, Places: []api.ArtefactPlace{},
	}
	for _, p := range places {
		if p.Digest == a.Digest {
			out.Places = append(out.Places, api.ArtefactPlace{Site: p.Site, Path: p.Path, AddedBy: p.AddedBy, AddedAt: p.AddedAt})
		}
	}
	return out
}

// restrictArtefact is for who registered it, and for operators.
func (s *server) restrictArtefact(r *http.Request, who auth.Identity) (any, error) {
	var req api.RestrictRequest
	if err := decode(r, &req); err != nil {
		return nil, err
	}
	if err := checkAccounts(req.Accounts); err != nil {
		return nil, err
	}
	ctx, digest := r.Context(), r.PathValue("digest")
	a, err := s.Store.Artefact(ctx, digest)
	if err != nil {
		return nil, err
	}
	if a.AddedUID != who.UID && !who.Operator {
		return nil, refused(nil, "%s %s was registered by %s: who registered it and operators say who may use it", a.Kind, short(digest), a.AddedBy)
	}
	if err := s.Store.RestrictArtefact(ctx, digest, req.Accounts); err != nil {
		return nil, err
	}
	s.Log.InfoContext(ctx, "artefact restricted", "digest", digest, "accounts", req.Accounts, "user", who.User)
	out, err := s.artefact(ctx, digest)
	out.Manifest = nil
	return out, err
}

func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// reference is an artefact that a setting names.
type reference struct {
	kind, axis   string
	path, digest *string
	resolve      func(string) string // a path of the sweep file to the site's
}

func references(st *site.Site, x *setting.Setting) []reference {
	refs := []reference{{store.ArtefactCheckpoint, "model.checkpoint", &x.Model.Checkpoint.Path, &x.Model.Checkpoint.Digest, st.ModelPath}}
	if x.Image.Kind == setting.ImageSIF {
		refs = append(refs, reference{store.ArtefactImage, "image", &x.Image.Path, &x.Image.Digest, st.ImagePath})
	}
	return refs
}

// lookUp gives paths to the artefacts that the sweep names by digest alone, and
// refuses what is not for the submission's account.
func (s *server) lookUp(ctx context.Context, a *admission) error {
	known, places, at, err := s.registered(ctx, a)
	if err != nil {
		return err
	}
	absent, barred := map[string]int{}, map[string]int{}
	bar := func(digest string) {
		if x, ok := known[digest]; ok && x.Accounts != nil && !slices.Contains(x.Accounts, a.options.Account) {
			barred[fmt.Sprintf("%s %s is for the accounts %s, not for %q", x.Kind, short(digest), strings.Join(x.Accounts, ", "), a.options.Account)]++
		}
	}
	for i := range a.sweep.Settings {
		for _, ref := range references(a.site, &a.sweep.Settings[i].Setting) {
			bar(*ref.digest)
			if *ref.path == "" && digestForm.MatchString(*ref.digest) {
				place, ok := places[*ref.digest]
				if x := known[*ref.digest]; !ok || x.Kind != ref.kind {
					absent[fmt.Sprintf("%s.digest: no %s %s is registered on site %s", ref.axis, ref.kind, *ref.digest, a.site.Name)]++
					continue
				}
				*ref.path = place
			}
			for _, digest := range at[ref.resolve(*ref.path)] {
				bar(digest)
			}
			if ref.kind == store.ArtefactImage && known[*ref.digest].Kind != store.ArtefactImage {
				a.foreign = append(a.foreign, fmt.Sprintf("image %s is not registered", *ref.path))
			}
		}
	}
	if len(absent) > 0 {
		return &api.Problem{
			Code: api.CodeInvalid, Message: "the sweep names artefacts that are not registered", Reasons: counted(absent),
			Hint: "register them with sbench checkpoint add or sbench image add, or give their paths",
		}
	}
	if len(barred) > 0 {
		return refused(counted(barred), "not every artefact is for this submission")
	}
	return nil
}

// registered reads what the registry knows of the sweep's digests and paths.
func (s *server) registered(ctx context.Context, a *admission) (known map[string]store.Artefact, places map[string]string, at map[string][]string, err error) {
	var digests, paths []string
	for i := range a.sweep.Settings {
		for _, ref := range references(a.site, &a.sweep.Settings[i].Setting) {
			if digestForm.MatchString(*ref.digest) {
				digests = append(digests, *ref.digest)
			}
			if *ref.path != "" {
				paths = append(paths, ref.resolve(*ref.path))
			}
		}
	}
	compact := func(list []string) []string { return slices.Compact(slices.Sorted(slices.Values(list))) }
	if at, err = s.Store.ArtefactsAt(ctx, a.site.Name, nonNil(compact(paths))); err != nil {
		return nil, nil, nil, err
	}
	for _, more := range at {
		digests = append(digests, more...)
	}
	digests = nonNil(compact(digests))
	list, err := s.Store.Artefacts(ctx, "", digests)
	if err != nil {
		return nil, nil, nil, err
	}
	where, err := s.Store.ArtefactPlaces(ctx, digests)
	if err != nil {
		return nil, nil, nil, err
	}
	known, places = map[string]store.Artefact{}, map[string]string{}
	for _, x := range list {
		known[x.Digest] = x
	}
	for _, p := range where {
		if _, taken := places[p.Digest]; !taken && p.Site == a.site.Name {
			places[p.Digest] = p.Path
		}
	}
	return known, places, at, nil
}
