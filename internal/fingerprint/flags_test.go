package fingerprint

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompareFlags(t *testing.T) {
	t.Parallel()
	lines := func(expected, realized map[string]string) (lines []string) {
		for _, i := range CompareFlags(expected, realized) {
			if i.Refuses() {
				lines = append(lines, i.Line())
			}
		}
		return lines
	}
	before := map[string]string{"max-num-seqs": "256", "dtype": "bfloat16"}
	for _, tt := range []struct {
		name               string
		expected, realized map[string]string
		want               []string
	}{
		{"nothing known yet", nil, map[string]string{"a": "1"}, nil},
		{"equal", before, map[string]string{"max-num-seqs": "256", "dtype": "bfloat16"}, nil},
		{"what moves", before, map[string]string{"max-num-seqs": "256", "dtype": "bfloat16", "port": "4711", "nccl_port": "1", "random_seed": "77", "max_total_num_tokens": "9"}, nil},
		{"another value", before, map[string]string{"max-num-seqs": "128", "dtype": "bfloat16"}, []string{"ENV_DRIFT: engine flag max-num-seqs 256 expected, 128 realized"}},
		{"gone", before, map[string]string{"dtype": "bfloat16"}, []string{"ENV_DRIFT: engine flag max-num-seqs 256 expected, could not be read (the engine does not report it any more)"}},
		{"new", before, map[string]string{"max-num-seqs": "256", "dtype": "bfloat16", "spec": "eagle"}, []string{"ENV_DRIFT: engine flag spec not reported expected, eagle realized"}},
		{"empty now", before, map[string]string{"max-num-seqs": "", "dtype": "bfloat16"}, []string{`ENV_DRIFT: engine flag max-num-seqs 256 expected, "" realized`}},
		{"silent now", before, nil, []string{
			"ENV_DRIFT: engine flag dtype bfloat16 expected, could not be read (the engine does not report it any more)",
			"ENV_DRIFT: engine flag max-num-seqs 256 expected, could not be read (the engine does not report it any more)",
		}},
	} {
		if diff := cmp.Diff(tt.want, lines(tt.expected, tt.realized)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	many := map[string]string{}
	for i := range 100 {
		many[fmt.Sprintf("flag%d", i)] = "x"
	}
	if got := lines(map[string]string{}, many); len(got) != maxFlagLines+1 {
		t.Errorf("%d lines for 100 differences", len(got))
	}
}
