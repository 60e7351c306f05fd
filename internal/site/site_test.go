package site_test

import (
	"os"
	"path/filepath"
	"testing"

	"sbench/internal/site"
)

// TestLoad_Examples: the files that people copy are valid.
func TestLoad_Examples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../site-configs/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, list := site.Load(data, filepath.Base(file))
		if len(list) > 0 {
			t.Errorf("%s:\n%s", file, list.Text())
			continue
		}
		if s.Name == "" || s.Cluster == "" || len(s.Hardware) == 0 {
			t.Errorf("%s: incomplete: %+v", file, s)
		}
	}
}
