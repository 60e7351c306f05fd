package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sbench/internal/proc"
)

func TestHelper_Snapshot(t *testing.T) {
	s, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	tests := []struct{ name, script, want string }{
		{"good", `echo '{"version":1,"driver":"550.54.15","devices":[{"index":0,"name":"NVIDIA L4","ecc":null}]}'`, ""},
		{"error", `echo '{"error":"no driver is loaded","code":"no_driver"}'; exit 3`, "no driver is loaded (no_driver)"},
		{"hang", `sleep 300`, "the driver hangs"},
		{"deaf hang", `trap '' TERM; sleep 300; sleep 300`, "the driver hangs"},
		{"crash", `echo half; kill -SEGV $$`, "segmentation fault"},
		{"missing symbol", `echo 'symbol lookup error: nvmlFoo' >&2; exit 127`, "symbol lookup error: nvmlFoo"},
		{"nonsense", `echo hello`, "decode snapshot"},
		{"later version", `echo '{"version":9}'`, "version 9"},
		{"too much", `head -c 5000000 /dev/zero`, "more than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sbench-gpu")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n[ \"$1\" = snapshot ] || exit 2\n"+tt.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			deadline := 30 * time.Second
			if strings.HasSuffix(tt.name, "hang") {
				deadline = 500 * time.Millisecond
			}
			began := time.Now()
			got, err := Helper{Path: path, Deadline: deadline, Supervisor: s}.Snapshot(t.Context())
			if tt.want == "" {
				if err != nil || *got.Driver != "550.54.15" || got.Devices[0].ECC != nil {
					t.Fatalf("%+v, %v", got, err)
				}
				return
			}
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
			if d := time.Since(began); d > 25*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
	if _, err := (Helper{Path: "/nonexistent", Deadline: time.Second, Supervisor: s}).Snapshot(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("absent helper: %v", err)
	}
}
