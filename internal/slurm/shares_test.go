package slurm

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParseShares(t *testing.T) {
	t.Parallel()
	got, err := parseShares(capture(t, "sshare-tree.out"))
	if err != nil {
		t.Fatal(err)
	}
	// root's own user has 1, ml 2, physics 6; below physics theory has 1, lattice 2
	// and guests what physics has.
	want := map[string]float64{"ml": 2. / 9, "physics": 6. / 9, "theory": 2. / 9, "lattice": 4. / 9, "guests": 6. / 9}
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Error(diff)
	}
	for name, text := range map[string]string{
		"columns": "root||\n ml|2\n", "depth": "root||\n  ml||2\n", "shares": "root||\n ml||many\n", "negative": "root||\n ml||-1\n",
		"no name": "root||\n ||1\n",
	} {
		if got, err := parseShares(text); err == nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// FuzzParseShares: whatever sshare prints, a share is a part of the whole.
func FuzzParseShares(f *testing.F) {
	f.Add(capture(f, "sshare-tree.out"))
	f.Add("root||\n a||0\n b||0\n")
	f.Fuzz(func(t *testing.T, text string) {
		shares, err := parseShares(text)
		if err != nil {
			return
		}
		for account, v := range shares {
			if math.IsNaN(v) || v < 0 || v > 1+1e-9 {
				t.Errorf("%q has %v", account, v)
			}
		}
	})
}
