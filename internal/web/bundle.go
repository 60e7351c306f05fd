package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"sbench/internal/api"
	"sbench/internal/auth"
	"sbench/internal/batch"
	"sbench/internal/bundle"
	"sbench/internal/result"
	"sbench/internal/resultfile"
	"sbench/internal/seal"
	"sbench/internal/setting"
	"sbench/internal/site"
	"sbench/internal/store"
	"sbench/internal/workload"
)

// maxInput is the largest file of a workload that goes into a bundle.
const maxInput = 256 << 20

// bundle answers with the archive of a run's latest sealed attempt.
func (s *server) bundle(w http.ResponseWriter, r *http.Request, who auth.Identity) error {
	ctx := r.Context()
	id, err := pathID(r, "run")
	if err != nil {
		return err
	}
	run, err := s.Store.Run(ctx, id)
	if err != nil {
		return err
	}
	if !who.MayAct(run.UserName) {
		return &api.Problem{Code: api.CodeRefused, Message: fmt.Sprintf("run %d is %s's: it is not bundled for %s", id, run.UserName, who.User)}
	}
	sealed, err := s.sealedAttempt(ctx, run)
	if err != nil {
		return err
	}
	defer sealed.Close()
	info, entries, err := s.bundleOf(ctx, run, sealed)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/gzip")
	w.WriteHeader(http.StatusOK)
	if err := bundle.Write(w, info, entries); err != nil {
		s.Log.WarnContext(ctx, "bundle cut off", "run", id, "error", err)
		panic(http.ErrAbortHandler) // the caller must not take the half for the whole
	}
	return nil
}

// sealedAttempt opens the latest sealed attempt of a run and checks every digest.
func (s *server) sealedAttempt(ctx context.Context, run store.Run) (*seal.Sealed, error) {
	attempts, err := s.Store.AttemptViews(ctx, run.ID)
	if err != nil {
		return nil, err
	}
	for _, a := range slices.Backward(attempts) {
		if !a.Sealed || a.Dir == "" {
			continue
		}
		sealed, err := seal.Open(a.Dir, seal.DefaultLimits())
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, seal.ErrUnsealed) {
			return nil, &api.Problem{Code: api.CodeNotFound, Message: fmt.Sprintf("the files of run %d are no longer in %s", run.ID, a.Dir)}
		}
		for _, f := range filesOf(sealed) {
			err = errors.Join(err, sealed.Check(f.Name))
		}
		if err != nil {
			return nil, &api.Problem{Code: api.CodeConflict, Message: fmt.Sprintf("the files of run %d are not the ones that were sealed: %v", run.ID, err)}
		}
		return sealed, nil
	}
	return nil, &api.Problem{
		Code: api.CodeNotFound, Message: fmt.Sprintf("run %d, which is %s, has no sealed attempt", run.ID, run.State),
		Hint: fmt.Sprintf("sbench show run %d says what became of it", run.ID),
	}
}

func filesOf(sealed *seal.Sealed) []result.File {
	if sealed == nil {
		return nil
	}
	return sealed.Manifest.Files
}

func (s *server) bundleOf(ctx context.Context, run store.Run, sealed *seal.Sealed) (bundle.Info, []bundle.Entry, error) {
	sweep, err := s.Store.SweepView(ctx, run.SweepID)
	if err != nil {
		return bundle.Info{}, nil, err
	}
	text, err := s.Store.SweepText(ctx, run.SweepID)
	if err != nil {
		return bundle.Info{}, nil, err
	}
	settings, err := s.Store.SettingViews(ctx, run.SweepID)
	if err != nil {
		return bundle.Info{}, nil, err
	}
	at := slices.IndexFunc(settings, func(v store.SettingView) bool { return v.SettingHash == run.SettingHash })
	if at < 0 {
		return bundle.Info{}, nil, fmt.Errorf("sweep %d has no setting %s", run.SweepID, run.SettingHash)
	}
	set := settings[at].Setting
	info := bundle.Info{
		CreatedAt: s.Now(), Sbench: s.Version, Sweep: run.SweepID, SweepName: sweep.Name, Run: run.ID, Repeat: run.Repeat,
		SettingHash: run.SettingHash, SeriesHash: settings[at].SeriesHash, Options: text.Options,
	}
	labels, err := json.MarshalIndent(&set, "", "  ")
	if err != nil {
		return bundle.Info{}, nil, fmt.Errorf("encode setting: %w", err)
	}
	entries := []bundle.Entry{
		bundle.Bytes(bundle.SweepFile, []byte(text.File)),
		bundle.Bytes(bundle.SpecFile, set.Canonical()),
		bundle.Bytes(bundle.SettingFile, labels),
	}
	if script := s.batchScript(ctx, run); script != nil {
		entries = append(entries, bundle.Bytes("batch.sbatch", script))
	}
	if items := s.qualityItems(ctx, sweep.Site, run.SweepID); items != nil {
		entries = append(entries, bundle.Bytes("quality-items.jsonl", items))
	}
	if sealed.Has(result.ResultFile) {
		measured, err := decodeResult(sealed)
		if err != nil {
			return bundle.Info{}, nil, err
		}
		info.PlanHash = measured.PlanHash
		entries = append(entries, bundle.Bytes(bundle.FingerprintFile, measured.Fingerprint))
		entries = append(entries, s.planEntries(sweep.Site, &set, run.Repeat, measured.PlanHash)...)
	}
	manifest, err := json.MarshalIndent(sealed.Manifest, "", "  ")
	if err != nil {
		return bundle.Info{}, nil, fmt.Errorf("encode manifest: %w", err)
	}
	for _, f := range sealed.Manifest.Files {
		e := bundle.Entry{File: f, Copy: func(w io.Writer) error { return sealed.Copy(f.Name, w) }}
		e.File.Name = bundle.AttemptDir + f.Name
		entries = append(entries, e)
	}
	return info, append(entries, bundle.Bytes(bundle.AttemptDir+result.ManifestName, manifest)), nil
}

func decodeResult(sealed *seal.Sealed) (result.Result, error) {
	content, err := sealed.Read(result.ResultFile)
	if err != nil {
		return result.Result{}, err
	}
	return resultfile.DecodeResult(bytes.NewReader(content), int64(len(content)))
}

// batchScript is what Slurm executed; nil where it is no longer there.
func (s *server) batchScript(ctx context.Context, run store.Run) []byte {
	places, err := s.Store.Places(ctx, run.ID)
	if err != nil || len(places) == 0 {
		return nil
	}
	script, err := readPlain(places[0].BatchDir, "batch.sbatch", 1<<20)
	if err != nil {
		return nil
	}
	return script
}

// qualityItems are the items that were asked after the measurement; nil where there
// were none, or the file is no longer what it was.
func (s *server) qualityItems(ctx context.Context, siteName string, sweep int64) []byte {
	admitted, err := s.Store.Sweep(ctx, sweep)
	if err != nil || admitted.Quality == nil {
		return nil
	}
	st, err := s.site(siteName)
	if err != nil {
		return nil
	}
	content := readInput(st, admitted.Quality.ItemsPath)
	if content == nil || batch.Digest(content) != admitted.Quality.ItemsDigest {
		return nil
	}
	return content
}

// planEntries plans the run's requests again, with the files that the workload
// names. A plan that is not the measured one has no place in the bundle.
func (s *server) planEntries(siteName string, set *setting.Setting, repeat int, hash string) []bundle.Entry {
	st, err := s.site(siteName)
	if err != nil {
		return nil
	}
	inputs := workload.Options{
		Trace:   readInput(st, set.Workload.Arrival.TracePath),
		Prompts: readInput(st, set.Workload.Prompts.FilePath),
	}
	plan, err := workload.New(set.Workload, repeat, inputs)
	if err != nil || plan.Hash != hash {
		return nil
	}
	var lines bytes.Buffer
	encoder := json.NewEncoder(&lines)
	for i := range plan.Requests {
		r := &plan.Requests[i]
		if err := encoder.Encode(map[string]any{
			"index": r.Index, "window": r.Window, "phase": r.Phase, "due_ns": r.Due, "session": r.Session, "turn": r.Turn, "prefix_group": r.Group,
			"input_tokens": r.Input, "prefix_tokens": r.Prefix, "output_tokens": r.Output, "prompt_row": r.Prompt, "seed": r.Seed,
		}); err != nil {
			return nil
		}
	}
	entries := []bundle.Entry{bundle.Bytes(bundle.PlanFile, lines.Bytes())}
	if len(inputs.Trace) > 0 {
		entries = append(entries, bundle.Bytes("trace", inputs.Trace))
	}
	if len(inputs.Prompts) > 0 {
		entries = append(entries, bundle.Bytes("prompts.jsonl", inputs.Prompts))
	}
	return entries
}

// readInput reads a file of a workload from the site's folder of models; nil
// where there is none to read.
func readInput(st *site.Site, name string) []byte {
	path := st.ModelPath(name)
	if name == "" || !inside(st.Paths.Models, path) {
		return nil
	}
	rel, err := filepath.Rel(st.Paths.Models, path)
	if err != nil {
		return nil
	}
	content, err := readPlain(st.Paths.Models, rel, maxInput)
	if err != nil {
		return nil
	}
	return content
}

// readPlain reads a regular file below dir, of at most limit bytes.
func readPlain(dir, name string, limit int64) ([]byte, error) {
	f, err := openPlain(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return content, err
}
