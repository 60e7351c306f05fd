package quality

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// TestF1 holds against SQuAD's evaluation script of version 2.0.
func TestF1(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		answer, reference string
		want              float64
	}{
		{"The Eiffel Tower, in Paris.", "eiffel tower", 0.6666666666666666},
		{"42", "42", 1.0},
		{"the", "a", 1.0},
		{"", "x", 0.0},
		{"", "the", 1.0},
		{"a an the cat cat", "cat", 0.6666666666666666},
		{"cat cat dog", "cat dog dog", 0.6666666666666666},
		{"“the” answer", "answer", 0.5},
		{"theatre", "the atre", 0.0},
		{"it's a-b", "its ab", 1.0},
		{"Ümlaut É", "ümlaut é", 1.0},
		{"one two three four", "three four five", 0.5714285714285715},
		{"naïve_approach", "naïveapproach", 1.0},
		{"x — the — y", "x — — y", 1.0},
		{"a1 the2", "a1", 0.6666666666666666},
		{"état the x", "état x", 1.0},
	} {
		if got := F1(tt.answer, tt.reference); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("F1(%q, %q) = %v, want %v", tt.answer, tt.reference, got, tt.want)
		}
	}
}

func TestF1_Properties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		x, y := F1(a, b), F1(b, a)
		if x != y || x < 0 || x > 1 {
			t.Fatalf("F1(%q, %q) = %v, the other way round %v", a, b, x, y)
		}
		if F1(a, a) != 1 {
			t.Fatalf("F1(%q, itself) = %v", a, F1(a, a))
		}
	})
}

func items(t *testing.T, method Method, text string) []Item {
	t.Helper()
	list, err := ParseItems([]byte(text), method)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestScore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		method    Method
		reference string // JSON
		answer    string
		want      float64
	}{
		{ExactMatch, `"42"`, " 42\n", 1},
		{ExactMatch, `"42"`, "42.", 0},
		{ExactMatch, `["41","42"]`, "42", 1},
		{ExactMatch, `"Paris"`, "paris", 0},
		{Contains, `"42"`, "it is 142", 1},
		{Contains, `"42"`, "it is 4 2", 0},
		{Regex, `"(?i)\\bparis\\b"`, "In PARIS!", 1},
		{Regex, `"^paris$"`, "in paris", 0},
		{TokenF1, `["x","the Eiffel tower"]`, "Eiffel Tower, Paris", 0.8},
	} {
		list := items(t, tt.method, `{"prompt":"?","reference":`+tt.reference+`}`)
		if got := Score(tt.method, list[0], tt.answer); math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("%s, %s, answer %q: %v, want %v", tt.method, tt.reference, tt.answer, got, tt.want)
		}
	}
}

func TestParseItems(t *testing.T) {
	t.Parallel()
	list := items(t, ExactMatch, "{\"prompt\":\"1+1\",\"reference\":\"2\",\"id\":\"a\"}\n\n{\"reference\":[\"x\",\"y\"],\"prompt\":\"?\"}")
	want := []Item{{Index: 0, ID: "a", Prompt: "1+1", References: []string{"2"}}, {Index: 1, Prompt: "?", References: []string{"x", "y"}}}
	if diff := cmp.Diff(want, list, cmp.AllowUnexported(Item{})); diff != "" {
		t.Error(diff)
	}
	if n := len(items(t, Command, "{\"any\":1}\n[2]\n")); n != 2 {
		t.Errorf("a command's file has %d items, want 2", n)
	}
	for name, tt := range map[string]struct {
		method Method
		text   string
	}{
		"empty":                        {ExactMatch, "\n \n"},
		"no JSON":                      {ExactMatch, "prompt: x"},
		"no object":                    {ExactMatch, `"x"`},
		"null":                         {ExactMatch, `null`},
		"a key in another case":        {ExactMatch, `{"Prompt":"x","reference":"y"}`},
		"a key twice":                  {ExactMatch, `{"prompt":"x","prompt":"z","reference":"y"}`},
		"an unknown key":               {ExactMatch, `{"prompt":"x","reference":"y","answer":"y"}`},
		"no prompt":                    {ExactMatch, `{"reference":"y"}`},
		"no reference":                 {ExactMatch, `{"prompt":"x"}`},
		"no references":                {ExactMatch, `{"prompt":"x","reference":[]}`},
		"a null reference":             {ExactMatch, `{"prompt":"x","reference":null}`},
		"a null in the references":     {ExactMatch, `{"prompt":"x","reference":["y",null]}`},
		"a number as reference":        {ExactMatch, `{"prompt":"x","reference":2}`},
		"an id twice":                  {ExactMatch, "{\"id\":\"a\",\"prompt\":\"x\",\"reference\":\"y\"}\n{\"id\":\"a\",\"prompt\":\"x\",\"reference\":\"y\"}"},
		"contains nothing":             {Contains, `{"prompt":"x","reference":""}`},
		"no pattern":                   {Regex, `{"prompt":"x","reference":"("}`},
		"a pattern of an empty answer": {Regex, `{"prompt":"x","reference":"x*"}`},
		"a command's file, no JSON":    {Command, "x"},
		"no UTF-8":                     {ExactMatch, "{\"prompt\":\"\xff\",\"reference\":\"y\"}"},
	} {
		if list, err := ParseItems([]byte(tt.text), tt.method); !errors.Is(err, ErrItems) {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

func TestParseScores(t *testing.T) {
	t.Parallel()
	list, err := ParseScores([]byte("0.5\n{\"id\":\"q\",\"score\":1,\"note\":3}\n\n{\"score\":null,\"reason\":\"no answer\"}\nnull\n"), 4)
	if err != nil {
		t.Fatal(err)
	}
	half, one := 0.5, 1.0
	want := []result.QualityItem{
		{Index: 0, Score: &half}, {Index: 1, ID: "q", Score: &one}, {Index: 2, Reason: "no answer"}, {Index: 3, Reason: "the command gave no score"},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
	for name, tt := range map[string]struct {
		text  string
		count int
	}{
		"nothing": {"", 1}, "fewer": {"1\n", 2}, "more": {"1\n1\n", 1}, "a log line": {"loading\n1\n", 2}, "above 1": {"1.5", 1}, "below 0": {"-0.1", 1},
		"percent": {"87", 1}, "a text": {`"1"`, 1}, "no score": {`{"id":"a"}`, 1}, "true": {"true", 1}, "a list": {"[1]", 1}, "NaN": {"NaN", 1},
		"cut": {`{"score":`, 1}, "an id twice": {"{\"id\":\"a\",\"score\":1}\n{\"id\":\"a\",\"score\":1}", 2}, "an id that is no text": {`{"id":1,"score":1}`, 1},
	} {
		if list, err := ParseScores([]byte(tt.text), tt.count); !errors.Is(err, ErrOutput) {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	v := func(x float64) *float64 { return &x }
	got := Summarize([]result.QualityItem{{Score: v(1)}, {Score: v(0), FinishReason: "length"}, {Score: v(0.5)}})
	if got.Score == nil || *got.Score != 0.5 || got.StdDev == nil || math.Abs(*got.StdDev-0.5) > 1e-15 || got.Scored != 3 || got.Truncated != 1 || got.Reason != "" {
		t.Errorf("%+v", got)
	}
	// Without a score for every item there is no total.
	got = Summarize([]result.QualityItem{{Score: v(1)}, {Index: 1, Reason: "HTTP 500"}})
	if got.Score != nil || got.StdDev != nil || got.Scored != 1 || got.Items != 2 || got.Reason != "1 of 2 items have no score: item 1: HTTP 500" {
		t.Errorf("%+v", got)
	}
	if got = Summarize([]result.QualityItem{{Score: v(1)}}); got.Score == nil || got.StdDev != nil {
		t.Errorf("one item: %+v", got)
	}
	if got = Summarize(nil); got.Score != nil || got.Reason == "" {
		t.Errorf("no item: %+v", got)
	}
}

func plain() Definition {
	return Definition{
		Method: TokenF1, ItemsPath: "q.jsonl", ItemsDigest: "sha256:" + strings.Repeat("0a", 32), Endpoint: setting.EndpointChat,
		MaxOutputTokens: 16, Concurrency: 1, TimeLimit: time.Minute,
	}
}

func program() Definition {
	return Definition{Method: Command, Command: []string{"eval", "{url}"}, Count: 3, MaxOutputTokens: 16, TimeLimit: time.Minute}
}

func TestDefinition_Validate(t *testing.T) {
	t.Parallel()
	for _, d := range []Definition{plain(), program()} {
		if err := d.Validate(); err != nil {
			t.Errorf("%+v: %v", d, err)
		}
	}
	for name, edit := range map[string]func(*Definition){
		"unknown method":           func(d *Definition) { d.Method = "bleu" },
		"no items":                 func(d *Definition) { d.ItemsPath, d.ItemsDigest = "", "" },
		"no digest":                func(d *Definition) { d.ItemsDigest = "" },
		"a short digest":           func(d *Definition) { d.ItemsDigest = "sha256:00" },
		"a command beside":         func(d *Definition) { d.Command = []string{"x"} },
		"a count":                  func(d *Definition) { d.Count = 2 },
		"no endpoint":              func(d *Definition) { d.Endpoint = "" },
		"no concurrency":           func(d *Definition) { d.Concurrency = 0 },
		"no tokens":                func(d *Definition) { d.MaxOutputTokens = 0 },
		"a temperature of nothing": func(d *Definition) { d.Temperature = math.NaN() },
		"no time":                  func(d *Definition) { d.TimeLimit = 0 },
		"a negative seed":          func(d *Definition) { d.Seed = -1 },
		"a command without one":    func(d *Definition) { *d = program(); d.Command = nil },
		"neither items nor count":  func(d *Definition) { *d = program(); d.Count = 0 },
		"a command's concurrency":  func(d *Definition) { *d = program(); d.Concurrency = 2 },
		"a NUL in an argument":     func(d *Definition) { *d = program(); d.Command = []string{"a\x00b"} },
	} {
		d := plain()
		edit(&d)
		if err := d.Validate(); !errors.Is(err, ErrDefinition) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDefinition_Hash: what can change a score changes the hash, and the place of
// the items and the limit of time do not.
func TestDefinition_Hash(t *testing.T) {
	t.Parallel()
	base := plain()
	// For ever: it is what tells two scores of two years apart.
	if got, want := base.Hash(), "ecc859f5bea141931113b745d20a6fca2c9746c0f3f0b838148b9d9ceec909af"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	for name, edit := range map[string]func(*Definition){
		"method": func(d *Definition) { d.Method = Contains }, "items": func(d *Definition) { d.ItemsDigest = "sha256:" + strings.Repeat("0b", 32) },
		"tokens": func(d *Definition) { d.MaxOutputTokens++ }, "seed": func(d *Definition) { d.Seed++ }, "temperature": func(d *Definition) { d.Temperature = 0.5 },
		"endpoint": func(d *Definition) { d.Endpoint = setting.EndpointCompletions }, "concurrency": func(d *Definition) { d.Concurrency++ },
		"command": func(d *Definition) { *d = program() },
	} {
		d := plain()
		if edit(&d); d.Hash() == base.Hash() {
			t.Errorf("%s changes nothing", name)
		}
	}
	other := plain()
	other.ItemsPath, other.TimeLimit = "/elsewhere", time.Hour
	if other.Hash() != base.Hash() {
		t.Error("path and time limit change the hash")
	}
	if (*Definition)(nil).Hash() != "" || (*Definition)(nil).Budget() != 0 {
		t.Error("no definition has a hash or a budget")
	}
	text, err := json.Marshal(base)
	if err != nil {
		t.Fatal(err)
	}
	var back Definition
	if err := json.Unmarshal(text, &back); err != nil || !cmp.Equal(back, base) {
		t.Errorf("%s: %+v, %v", text, back, err)
	}
}

func TestDefinition_Argv(t *testing.T) {
	t.Parallel()
	d := program()
	d.Command, d.Seed = []string{"eval", "--url={url}", "{model}", "{items}", "{seed}", "{max_tokens}", "{other}"}, 7
	got := d.Argv(Place{URL: "http://h/v1", Model: "m {url}", Items: "/i"})
	if diff := cmp.Diff([]string{"eval", "--url=http://h/v1", "m {url}", "/i", "7", "16", "{other}"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseItems(f *testing.F) {
	f.Add([]byte("{\"prompt\":\"1+1\",\"reference\":\"2\",\"id\":\"a\"}\n"), "exact_match")
	f.Add([]byte("{\"prompt\":\"?\",\"reference\":[\"(?i)x\",\"y\"]}"), "regex")
	f.Add([]byte("{}\n1"), "command")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		method := Method(name)
		list, err := ParseItems(data, method)
		if err != nil {
			if !errors.Is(err, ErrItems) {
				t.Fatal(err)
			}
			return
		}
		for i, item := range list {
			if item.Index != i || method != Command && (item.Prompt == "" || len(item.References) == 0) {
				t.Fatalf("%+v", item)
			}
			if s := Score(method, item, item.Prompt); s < 0 || s > 1 {
				t.Fatalf("score %v", s)
			}
			if method == Contains || method == Regex {
				if Score(method, item, "") != 0 {
					t.Fatalf("an empty answer meets %q", item.References)
				}
			}
		}
	})
}

func FuzzParseScores(f *testing.F) {
	f.Add([]byte("0.5\n{\"id\":\"q\",\"score\":1}\nnull\n"), 3)
	f.Add([]byte("{\"score\":null,\"reason\":\"x\"}"), 1)
	f.Fuzz(func(t *testing.T, data []byte, count int) {
		list, err := ParseScores(data, count)
		if err != nil {
			if !errors.Is(err, ErrOutput) {
				t.Fatal(err)
			}
			return
		}
		if len(list) != count {
			t.Fatalf("%d scores of %d", len(list), count)
		}
		for i, s := range list {
			if s.Index != i || (s.Score == nil) != (s.Reason != "") || s.Score != nil && !(*s.Score >= 0 && *s.Score <= 1) {
				t.Fatalf("%+v", s)
			}
		}
		if sum := Summarize(list); sum.Score != nil && (sum.Scored != sum.Items || *sum.Score < 0 || *sum.Score > 1) {
			t.Fatalf("%+v", sum)
		}
	})
}
