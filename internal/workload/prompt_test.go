package workload

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sbench/internal/setting"
)

func prompter(t *testing.T, p *Plan, v Vocabulary) *Prompter {
	t.Helper()
	pr, err := NewPrompter(p, v)
	if err != nil {
		t.Fatal(err)
	}
	return pr
}

// A prompt has exactly as many words as tokens were planned, less what the
// template has, whatever its group and nonce.
func TestPrompter_ExactLength(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := serving(setting.ProcessPoisson, 2)
		w.Input = setting.Lengths{Distribution: setting.DistUniform, Min: 20, Max: 400}
		w.Prompts.Groups = rapid.IntRange(0, 3).Draw(t, "groups")
		w.Prompts.PrefixLen, w.Prompts.HitRatio = 50, 0.5
		w.Prompts.Nonce = rapid.Bool().Draw(t, "nonce")
		w.Prompts.Turns = rapid.IntRange(1, 2).Draw(t, "turns")
		v := Vocabulary{Words: strings.Fields("alpha beta gamma delta epsilon")[:rapid.IntRange(2, 5).Draw(t, "words")], Base: rapid.IntRange(0, 19).Draw(t, "base")}
		p, err := New(w, 0, Options{})
		if err != nil {
			t.Fatal(err)
		}
		pr, err := NewPrompter(p, v)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Requests {
			r := &p.Requests[i]
			text := string(pr.Append(nil, r))
			want := int(r.Input)
			if r.Turn == 0 {
				want -= v.Base
			}
			if got := len(strings.Fields(text)); got != want || strings.TrimSpace(text) != text || strings.Contains(text, "  ") {
				t.Fatalf("%+v: %d words, want %d: %q", *r, got, want, text)
			}
		}
	})
}

// No prompt begins as another does, unless the workload asks for it.
func TestPrompter_Prefixes(t *testing.T) {
	t.Parallel()
	words := Vocabulary{Words: strings.Fields("alpha beta gamma delta epsilon zeta eta theta"), Base: 3}
	w := serving(setting.ProcessPoisson, 40)
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 100}
	heads := func(w setting.Workload, repeat, n int) map[string]int {
		p := plan(t, w, repeat)
		pr := prompter(t, p, words)
		seen := map[string]int{}
		for i := range p.Requests {
			text := strings.Fields(string(pr.Append(nil, &p.Requests[i])))
			seen[strings.Join(text[:n], " ")]++
		}
		return seen
	}
	first := heads(w, 0, 22)
	for head, n := range first {
		if n > 1 {
			t.Fatalf("%d prompts begin with %q", n, head)
		}
	}
	for head := range heads(w, 1, 22) {
		if first[head] > 0 {
			t.Fatal("two repeats share a prompt")
		}
	}
	w.Prompts.Groups, w.Prompts.PrefixLen, w.Prompts.HitRatio = 3, 60, 1
	groups := heads(w, 0, 60)
	if len(groups) != 6 { // three, and three of the warm-up
		t.Errorf("%d prefixes for 3 groups", len(groups))
	}
	for head := range heads(w, 1, 60) {
		if groups[head] == 0 {
			t.Error("a group has another prefix in another repeat")
		}
	}
}

func TestPrompter_File(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	texts := map[string]bool{}
	for _, text := range []string{"plain", "quotes \" and \\ and \n", "größe 世界", "<html>&"} {
		texts[text] = true
		line, err := json.Marshal(map[string]any{"prompt": text, "output_tokens": 7})
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(line, '\n'))
	}
	w := serving(setting.ProcessPoisson, 4)
	w.Prompts.Source, w.Prompts.Nonce = "file", false
	w.Input, w.Output = setting.Lengths{Distribution: setting.DistFile}, setting.Lengths{Distribution: setting.DistFile}
	p, err := New(w, 0, Options{Prompts: []byte(file.String())})
	if err != nil {
		t.Fatal(err)
	}
	pr := prompter(t, p, Vocabulary{})
	for i := range p.Requests {
		var text string
		literal := append(append([]byte{'"'}, pr.Append(nil, &p.Requests[i])...), '"')
		if err := json.Unmarshal(literal, &text); err != nil || !texts[text] || p.Requests[i].Output != 7 {
			t.Fatalf("%s: %v", literal, err)
		}
	}
}

func TestPrompter_TooShort(t *testing.T) {
	t.Parallel()
	w := serving(setting.ProcessPoisson, 2)
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 12}
	if _, err := NewPrompter(plan(t, w, 0), Vocabulary{Words: []string{"a", "b"}, Base: 12}); err == nil {
		t.Error("a prompt of 12 tokens fits a template of 12")
	}
}

func BenchmarkAppend(b *testing.B) {
	w := serving(setting.ProcessPoisson, 2)
	w.Input = setting.Lengths{Distribution: setting.DistConstant, Value: 1024}
	p, err := New(w, 0, Options{})
	if err != nil {
		b.Fatal(err)
	}
	pr, err := NewPrompter(p, Vocabulary{Words: Candidates()})
	if err != nil {
		b.Fatal(err)
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = pr.Append(buf[:0], &p.Requests[0])
	}
}
