package canon_test

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/canon"
)

// TestAppendFloat_RFC8785 is the table of appendix B of RFC 8785.
func TestAppendFloat_RFC8785(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bits uint64
		want string // "" is an error
	}{
		{0x0000000000000000, "0"},
		{0x8000000000000000, "0"},
		{0x0000000000000001, "5e-324"},
		{0x8000000000000001, "-5e-324"},
		{0x7fefffffffffffff, "1.7976931348623157e+308"},
		{0xffefffffffffffff, "-1.7976931348623157e+308"},
		{0x4340000000000000, "9007199254740992"},
		{0xc340000000000000, "-9007199254740992"},
		{0x4430000000000000, "295147905179352830000"},
		{0x7fffffffffffffff, ""},
		{0x7ff0000000000000, ""},
		{0xfff0000000000000, ""},
		{0x44b52d02c7e14af5, "9.999999999999997e+22"},
		{0x44b52d02c7e14af6, "1e+23"},
		{0x44b52d02c7e14af7, "1.0000000000000001e+23"},
		{0x444b1ae4d6e2ef4e, "999999999999999700000"},
		{0x444b1ae4d6e2ef4f, "999999999999999900000"},
		{0x444b1ae4d6e2ef50, "1e+21"},
		{0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
		{0x3eb0c6f7a0b5ed8d, "0.000001"},
		{0x41b3de4355555553, "333333333.3333332"},
		{0x41b3de4355555554, "333333333.33333325"},
		{0x41b3de4355555555, "333333333.3333333"},
		{0x41b3de4355555556, "333333333.3333334"},
		{0x41b3de4355555557, "333333333.33333343"},
		{0xbecbf647612f3696, "-0.0000033333333333333333"},
		{0x43143ff3c1cb0959, "1424953923781206.2"},
	} {
		got, err := canon.AppendFloat(nil, math.Float64frombits(c.bits))
		if (err != nil) != (c.want == "") || string(got) != c.want {
			t.Errorf("%016x: %q, %v; want %q", c.bits, got, err, c.want)
		}
	}
}

// TestTransform_RFC8785 holds the examples of sections 3.2.2 to 3.2.4.
func TestTransform_RFC8785(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"whole document": {
			`{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}`,
			`{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,
		},
		"key order": {
			`{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\"," +
				"\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}",
		},
		"nested":        {` { "b" : [ { } , [ ] , { "z" : 1 , "a" : - 0 } ] } `, ""},
		"nested valid":  {` { "b" : [ { } , [ ] , { "z" : 1 , "a" : -0 } ] } `, `{"b":[{},[],{"a":0,"z":1}]}`},
		"not HTML-safe": {`"<a href='x'>&\u2028\u007f"`, "\"<a href='x'>&\u2028\u007f\""},
		"duplicate":     {`{"a":1,"a":1}`, ""},
		"escaped dup":   {`{"a":1,"\u0061":2}`, ""},
		"lone high":     {`"\ud800"`, ""},
		"lone low":      {`"\udc00"`, ""},
		"bad pair":      {`"\ud800\u0041"`, ""},
		"big integer":   {`9007199254740993`, ""},
		"exact integer": {`9007199254740991`, `9007199254740991`},
		"overflow":      {`1e999`, ""},
		"leading zero":  {`01`, ""},
		"hex":           {`0x10`, ""},
		"NaN":           {`NaN`, ""},
		"trailing":      {`1 2`, ""},
		"comma":         {`[1,]`, ""},
		"object comma":  {`{"a":1,}`, ""},
		"control":       {"\"\n\"", ""},
		"UTF-8":         {"\"\xff\"", ""},
		"empty":         {``, ""},
		"open":          {`{"a":[1`, ""},
		"deep":          {strings.Repeat("[", 5000), ""},
	} {
		got, err := canon.Transform([]byte(c.in))
		if (err != nil) != (c.want == "") {
			t.Errorf("%s: error %v; want %q", name, err, c.want)
		}
		if diff := cmp.Diff(c.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	type inner struct {
		B float64 `json:"b"`
		A string  `json:"a,omitempty"`
	}
	for _, c := range []struct {
		in   any
		want string
	}{
		{nil, "null"},
		{map[string]any{"b": 1, "a": []any{true, "x", 0.5, int64(7), nil}}, `{"a":[true,"x",0.5,7,null],"b":1}`},
		{map[string]string{"z": "1", "a": ""}, `{"a":"","z":"1"}`},
		{[]string(nil), "[]"},
		{[]float64{1, 1e21}, "[1,1e+21]"},
		{[]inner{{B: 2}, {A: "<"}}, `[{"b":2},{"a":"<","b":0}]`},
		{json.RawMessage(`{"b":1.0,"a":10e-1}`), `{"a":1,"b":1}`},
		{map[string]any{"x": inner{B: 1}}, `{"x":{"b":1}}`},
		{math.NaN(), ""},
		{int64(1) << 53, ""},
		{"\xff", ""},
		{inner{A: "\xff"}, ""},
		{map[inner]int{}, ""},
	} {
		got, err := canon.Marshal(c.in)
		if (err != nil) != (c.want == "") || string(got) != c.want {
			t.Errorf("%#v: %s, %v; want %s", c.in, got, err, c.want)
		}
	}
}

func TestSum(t *testing.T) {
	t.Parallel()
	got, err := canon.Sum(map[string]any{})
	// SHA-256 of the two bytes "{}".
	if want := "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"; got != want || err != nil {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

// TestCompareKeys_UTF16: the order is that of the UTF-16 code units.
func TestCompareKeys_UTF16(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		runes := rapid.SliceOfN(rapid.SampledFrom([]rune{'a', 'b', 0x7f, 0xd7ff, 0xe000, 0xfb33, 0xffff, 0x10000, 0x1f600, 0x10ffff}), 0, 4)
		a, b := runes.Draw(t, "a"), runes.Draw(t, "b")
		want := slices.Compare(utf16.Encode(a), utf16.Encode(b))
		if got := canon.CompareKeys(string(a), string(b)); sign(got) != want {
			t.Fatalf("CompareKeys(%q, %q) = %d, want sign %d", string(a), string(b), got, want)
		}
	})
}

func sign(v int) int {
	switch {
	case v < 0:
		return -1
	case v > 0:
		return 1
	}
	return 0
}

// FuzzTransform: what is accepted means the same to encoding/json, and is a
// fixed point.
func FuzzTransform(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.50,"\u00e9\ud83d\ude00"],"b":{"c":null}}`, `[]`, `"\b\f"`, `-0.0`, `1e-7`, `{"":{"":1}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := canon.Transform(in)
		if err != nil {
			return
		}
		again, err := canon.Transform(out)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("not a fixed point: %q, then %q, %v", out, again, err)
		}
		var a, b any
		if err := json.Unmarshal(in, &a); err != nil {
			t.Fatalf("encoding/json refuses %q: %v", in, err)
		}
		if err := json.Unmarshal(out, &b); err != nil {
			t.Fatalf("encoding/json refuses the output %q: %v", out, err)
		}
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("the meaning changed: %q, %q", in, out)
		}
	})
}
