package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sbench/internal/bundle"
	"sbench/internal/result"
)

func all(string) bool { return true }

var entries = []bundle.Entry{
	bundle.Bytes(bundle.SweepFile, []byte("sweep: v1\n")),
	bundle.Bytes(bundle.AttemptDir+"result.parquet", []byte{0, 1, 2}),
	bundle.Bytes(bundle.PlanFile, nil),
}

func write(t testing.TB, info bundle.Info, entries []bundle.Entry) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := bundle.Write(&b, info, entries); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRead_WhatWasWritten(t *testing.T) {
	t.Parallel()
	info := bundle.Info{
		CreatedAt: time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC), Sbench: "v1", Sweep: 3, SweepName: "nightly", Run: 17, Repeat: 2,
		SettingHash: "aa", SeriesHash: "bb", PlanHash: "cc", Options: json.RawMessage(`{"site":"lab"}`),
	}
	text := write(t, info, entries)
	if !bytes.Equal(text, write(t, info, entries)) {
		t.Error("the same input gave other bytes")
	}
	got, files, err := bundle.Read(bytes.NewReader(text), 1<<20, all)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info.Files = append(info.Files, e.File)
	}
	info.Version = bundle.Version
	var compact bytes.Buffer
	if err := json.Compact(&compact, got.Options); err != nil {
		t.Fatal(err)
	}
	got.Options = compact.Bytes()
	if diff := cmp.Diff(info, got); diff != "" {
		t.Error(diff)
	}
	want := map[string][]byte{"sweep.yaml": []byte("sweep: v1\n"), "attempt/result.parquet": {0, 1, 2}, "plan.jsonl": nil}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
	_, files, err = bundle.Read(bytes.NewReader(text), 1<<20, func(name string) bool { return name == bundle.SweepFile })
	if err != nil || len(files) != 1 {
		t.Errorf("got %v, %v", files, err)
	}
}

// archive packs raw entries, whatever they are.
func archive(t *testing.T, info any, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	text, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	put := func(h tar.Header, content []byte) {
		h.Size, h.Mode = int64(len(content)), 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	put(tar.Header{Name: bundle.InfoFile}, text)
	for _, h := range headers {
		if h.Typeflag == tar.TypeSymlink {
			put(h, nil)
			continue
		}
		put(h, []byte("x"))
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRead_RefusesWhatIsNotABundle(t *testing.T) {
	t.Parallel()
	x := bundle.Bytes("x", []byte("x")).File
	named := func(name string) bundle.Info {
		f := x
		f.Name = name
		return bundle.Info{Version: 1, Files: []result.File{f}}
	}
	wrong := x
	wrong.SHA256 = strings.Repeat("0", 64)
	good := write(t, bundle.Info{}, entries)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-6] ^= 1 // the checksum behind the archive
	for name, text := range map[string][]byte{
		"empty":           nil,
		"no gzip":         []byte("hello"),
		"another version": archive(t, map[string]int{"version": 2}),
		"no list":         archive(t, "hello"),
		"not listed":      archive(t, bundle.Info{Version: 1}, tar.Header{Name: "x"}),
		"missing":         archive(t, named("x")),
		"another name":    archive(t, named("y"), tar.Header{Name: "x"}),
		"leads out":       archive(t, named("../x"), tar.Header{Name: "../x"}),
		"absolute":        archive(t, named("/etc/x"), tar.Header{Name: "/etc/x"}),
		"twice":           archive(t, bundle.Info{Version: 1, Files: []result.File{x, x}}, tar.Header{Name: "x"}, tar.Header{Name: "x"}),
		"a link":          archive(t, bundle.Info{Version: 1, Files: []result.File{{Name: "x"}}}, tar.Header{Name: "x", Typeflag: tar.TypeSymlink, Linkname: "/etc"}),
		"wrong digest":    archive(t, bundle.Info{Version: 1, Files: []result.File{wrong}}, tar.Header{Name: "x"}),
		"cut off":         good[:len(good)-20],
		"flipped":         flipped,
	} {
		if _, _, err := bundle.Read(bytes.NewReader(text), 1<<20, all); !errors.Is(err, bundle.ErrDamaged) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, _, err := bundle.Read(bytes.NewReader(good), 4, all); !errors.Is(err, bundle.ErrDamaged) {
		t.Errorf("too large: got %v", err)
	}
}

func TestWrite_ReportsAnEntryThatIsShort(t *testing.T) {
	t.Parallel()
	e := bundle.Bytes("x", []byte("xyz"))
	e.Copy = func(w io.Writer) error { _, err := fmt.Fprint(w, "x"); return err }
	if err := bundle.Write(io.Discard, bundle.Info{}, []bundle.Entry{e, bundle.Bytes("y", nil)}); err == nil {
		t.Error("a short entry was not noticed")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(write(f, bundle.Info{Options: json.RawMessage("{}")}, entries))
	f.Fuzz(func(t *testing.T, text []byte) {
		info, files, err := bundle.Read(bytes.NewReader(text), 1<<20, all)
		if err != nil {
			return
		}
		if len(files) != len(info.Files) {
			t.Errorf("%d files of %d listed", len(files), len(info.Files))
		}
	})
}
