package web_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sbench/internal/api"
	"sbench/internal/site"
)

func artefact(edit func(*api.ArtefactRequest)) api.ArtefactRequest {
	files := []api.ArtefactFile{
		{SHA256: strings.Repeat("a", 64), Size: 2, Path: "config.json"},
		{SHA256: strings.Repeat("b", 64), Size: 3, Path: "model.safetensors"},
	}
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%s  %d  %s\n", f.SHA256, f.Size, f.Path)
	}
	req := api.ArtefactRequest{
		Kind: api.ArtefactCheckpoint, Path: "/models/llama", Digest: fmt.Sprintf("sha256:%x", h.Sum(nil)), Bytes: 5, Files: 2, Manifest: files,
	}
	if edit != nil {
		edit(&req)
	}
	return req
}

func TestArtefacts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first := post[api.Artefact](e, "ada", "/v1/artefacts", artefact(nil))
	second := post[api.Artefact](e, "bob", "/v1/artefacts", artefact(func(r *api.ArtefactRequest) { r.Path = "/scratch/llama" }))
	if !first.Created || second.Created || len(second.Places) != 2 || second.AddedBy != "ada" {
		t.Errorf("%+v\n%+v", first, second)
	}
	shown := get[api.Artefact](e, "bob", "/v1/artefacts/"+first.Digest)
	if len(shown.Manifest) != 2 || shown.Accounts != nil {
		t.Errorf("%+v", shown)
	}
	if list := get[[]api.Artefact](e, "bob", "/v1/artefacts?kind=image"); len(list) != 0 {
		t.Errorf("images: %+v", list)
	}
	if list := get[[]api.Artefact](e, "bob", "/v1/artefacts"); len(list) != 1 || len(list[0].Places) != 2 {
		t.Errorf("all: %+v", list)
	}
	accounts := "/v1/artefacts/" + first.Digest + "/accounts"
	e.problem(api.CodeRefused, "bob", "POST", accounts, api.RestrictRequest{Accounts: []string{"x"}})
	for _, user := range []string{"ada", "root"} {
		if got := post[api.Artefact](e, user, accounts, api.RestrictRequest{Accounts: []string{"physics"}}); !slices.Equal(got.Accounts, []string{"physics"}) {
			t.Errorf("%s: %+v", user, got)
		}
	}
	e.problem(api.CodeNotFound, "ada", "GET", "/v1/artefacts/sha256:00", nil)
	e.problem(api.CodeInvalid, "ada", "GET", "/v1/artefacts?kind=x", nil)
	e.problem(api.CodeConflict, "ada", "POST", "/v1/artefacts", artefact(func(r *api.ArtefactRequest) {
		r.Kind, r.Manifest, r.Files = api.ArtefactImage, nil, 1
	}))
	for name, edit := range map[string]func(*api.ArtefactRequest){
		"kind":                 func(r *api.ArtefactRequest) { r.Kind = "dataset" },
		"digest":               func(r *api.ArtefactRequest) { r.Digest = "latest" },
		"another digest":       func(r *api.ArtefactRequest) { r.Digest = "sha256:" + strings.Repeat("0", 64) },
		"relative path":        func(r *api.ArtefactRequest) { r.Path = "llama" },
		"path that goes up":    func(r *api.ArtefactRequest) { r.Path = "/models/../etc" },
		"hostile path":         func(r *api.ArtefactRequest) { r.Path = "/models/\x1b[2J" },
		"name":                 func(r *api.ArtefactRequest) { r.Name = "<b>" },
		"size":                 func(r *api.ArtefactRequest) { r.Bytes = 6 },
		"count":                func(r *api.ArtefactRequest) { r.Files = 3 },
		"no manifest":          func(r *api.ArtefactRequest) { r.Manifest = nil },
		"unsorted":             func(r *api.ArtefactRequest) { slices.Reverse(r.Manifest) },
		"line break in a path": func(r *api.ArtefactRequest) { r.Manifest[0].Path = "a\nb" },
		"account":              func(r *api.ArtefactRequest) { r.Accounts = []string{"$(id)"} },
		"site":                 func(r *api.ArtefactRequest) { r.Site = "elsewhere" },
		"image of a folder":    func(r *api.ArtefactRequest) { r.Kind = api.ArtefactImage },
	} {
		t.Run(name, func(t *testing.T) {
			inner := *e
			inner.t = t
			inner.problem(api.CodeInvalid, "ada", "POST", "/v1/artefacts", artefact(edit))
		})
	}
}

// TestSubmit_ServiceRunsRegisteredImages: where jobs run under a service account,
// only what an operator has registered is executed.
func TestSubmit_ServiceRunsRegisteredImages(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.artefacts()
	e.site.SubmitAs = site.SubmitAsService
	p := e.problem(api.CodeRefused, "ada", "POST", "/v1/sweeps", request("service"))
	if !strings.Contains(strings.Join(p.Reasons, "\n"), "is not registered") {
		t.Errorf("%+v", p)
	}
	digest := "sha256:" + strings.Repeat("c", 64)
	image := artefact(func(r *api.ArtefactRequest) {
		r.Kind, r.Manifest, r.Files, r.Digest, r.Path = api.ArtefactImage, nil, 1, digest, e.site.ImagePath("engine.sif")
	})
	e.problem(api.CodeRefused, "ada", "POST", "/v1/artefacts", image)
	post[api.Artefact](e, "root", "/v1/artefacts", image)
	req := request("registered")
	req.File = strings.Replace(req.File, "path: engine.sif", `digest: "`+digest+`"`, 1)
	req.TestOnly = true
	post[api.SubmitResponse](e, "ada", "/v1/sweeps", req)
}
