package setting_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/canon"
	"sbench/internal/setting"
	"sbench/internal/unit"
)

// TestAxes_EveryField: the table has every field of Setting and no other.
func TestAxes_EveryField(t *testing.T) {
	t.Parallel()
	var fields []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for f := range typ.Fields() {
			key := prefix + f.Tag.Get("json")
			if f.Type.Kind() == reflect.Struct {
				walk(key+".", f.Type)
				continue
			}
			fields = append(fields, key)
		}
	}
	walk("", reflect.TypeFor[setting.Setting]())
	var keys []string
	for _, a := range setting.Axes() {
		keys = append(keys, a.Key)
	}
	slices.Sort(fields)
	slices.Sort(keys)
	if diff := cmp.Diff(fields, keys); diff != "" {
		t.Errorf("fields (-) and axes (+):\n%s", diff)
	}
}

// TestAxes_Rows: what every row must hold.
func TestAxes_Rows(t *testing.T) {
	t.Parallel()
	columns := map[string]string{}
	for _, a := range setting.Axes() {
		if other, ok := columns[a.Column]; ok {
			t.Errorf("%s and %s have the column %s", a.Key, other, a.Column)
		}
		columns[a.Column] = a.Key
		if len(a.Column) > 63 || !strings.HasPrefix(a.Column, strings.ReplaceAll(a.Key, ".", "_")) {
			t.Errorf("%s: column %s", a.Key, a.Column)
		}
		if a.Doc == "" || strings.HasSuffix(a.Doc, ".") {
			t.Errorf("%s: doc %q", a.Key, a.Doc)
		}
		if (a.Type == setting.TypeWord) != (len(a.Words) > 0) {
			t.Errorf("%s: type %s with words %v", a.Key, a.Type, a.Words)
		}
		if a.Moving && !a.Identity {
			t.Errorf("%s is moving and a label", a.Key)
		}
		got, entry, ok := setting.LookupAxis(a.Key)
		if !ok || entry != "" || got.Key != a.Key {
			t.Errorf("%s is not found", a.Key)
		}
	}
	for key, want := range map[string]string{
		"workload.duration": "workload_duration_s", "workload.arrival.rate": "workload_arrival_rate_per_s", "model.checkpoint.digest": "model_checkpoint_digest",
	} {
		if a, _, _ := setting.LookupAxis(key); a.Column != want {
			t.Errorf("%s: column %s, want %s", key, a.Column, want)
		}
	}
	if a, entry, ok := setting.LookupAxis("engine.args.a.b-c"); !ok || a.Key != "engine.args" || entry != "a.b-c" {
		t.Errorf("entry of a map axis: %v %q %v", a, entry, ok)
	}
	for _, key := range []string{"", "engine", "engine.arg", "engine.args.", "workload.arrival", "hardware.gpu.x"} {
		if _, _, ok := setting.LookupAxis(key); ok {
			t.Errorf("%q is found", key)
		}
	}
}

// TestAxes_Defaults: the manual's default is Default's.
func TestAxes_Defaults(t *testing.T) {
	t.Parallel()
	s := setting.Default()
	s.Normalize()
	for _, a := range setting.Axes() {
		if a.Default == "" || !a.Applies(&s) {
			continue
		}
		got := ""
		switch v := a.Value(&s).(type) {
		case string:
			got = v
		case float64:
			b, _ := canon.AppendFloat(nil, v)
			got = string(b)
			if a.Type == setting.TypeDuration {
				got = map[string]string{"120": "2m", "600": "10m", "30": "30s", "10": "10s", "60": "1m", "0": "0s"}[got]
			}
		default:
			b, _ := json.Marshal(v)
			got = string(b)
		}
		if got != a.Default && a.Key != "model.checkpoint.digest" {
			t.Errorf("%s: the manual says %q, Default %q", a.Key, a.Default, got)
		}
	}
}

// TestCanonical_Reference: the fast writer agrees with canon on a nested map.
func TestCanonical_Reference(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSetting(t)
		for _, series := range []bool{false, true} {
			tree := map[string]any{"spec_version": int64(setting.SpecVersion)}
			for _, a := range setting.Axes() {
				v := a.Value(&s)
				if v == nil || !a.Identity || series && a.Moving {
					continue
				}
				at := tree
				words := strings.Split(a.Key, ".")
				for _, w := range words[:len(words)-1] {
					if at[w] == nil {
						at[w] = map[string]any{}
					}
					at = at[w].(map[string]any)
				}
				at[words[len(words)-1]] = v
			}
			want, err := canon.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			got := s.Canonical()
			if series {
				got = s.SeriesSpec()
			}
			if string(got) != string(want) {
				t.Fatalf("got  %s\nwant %s", got, want)
			}
		}
	})
}

// TestHash_RoundTrip: freezing a setting as JSON keeps its identity.
func TestHash_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSetting(t)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back setting.Setting
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		again := s
		again.Normalize()
		if back.Hash() != s.Hash() || again.Hash() != s.Hash() || back.SeriesHash() != s.SeriesHash() {
			t.Fatal("the hash changed")
		}
		if diff := cmp.Diff(s, again); diff != "" {
			t.Fatalf("Normalize is not idempotent:\n%s", diff)
		}
	})
}

// other returns a value of the axis that differs from the present one.
func other(t *rapid.T, a setting.Axis, s *setting.Setting) any {
	switch v := a.Value(s).(type) {
	case string:
		return v + "x"
	case int64:
		step := rapid.Int64Range(1, 5).Draw(t, "step")
		if v > 0 {
			return v - step // stays within ±(2^53−1)
		}
		return v + step
	case float64:
		if a.Type == setting.TypeDuration {
			return unit.FromSeconds(v) + time.Duration(rapid.Int64Range(1, 1e9).Draw(t, "step"))
		}
		return v + rapid.SampledFrom([]float64{1, 0.5, 1e-9}).Draw(t, "step")
	case bool:
		return !v
	case map[string]string:
		m := map[string]string{"new": "1"}
		for k, old := range v {
			m[k] = old
		}
		return m
	case []string:
		return append(slices.Clone(v), "x")
	case []float64:
		return append(slices.Clone(v), 1)
	}
	switch a.Type {
	case setting.TypeStages:
		return append(slices.Clone(s.Workload.Arrival.Stages), setting.Stage{Rate: 1, Duration: 1})
	case setting.TypeBins:
		return []setting.Bin{{Min: 1, Max: 1, Weight: 0.25}}
	case setting.TypePairs:
		return []setting.Pair{{Input: 1, Output: 1, Weight: 0.25}}
	default:
		t.Fatalf("%s: no other value", a.Key)
		return nil
	}
}

// TestHash_EveryAxis: changing any axis changes the hashes that it is part of,
// and no other.
func TestHash_EveryAxis(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSetting(t)
		for _, a := range setting.Axes() {
			if !a.Applies(&s) {
				continue
			}
			changed := s
			a.Set(&changed, other(t, a, &s))
			if (changed.Hash() != s.Hash()) != a.Identity {
				t.Fatalf("%s: identity %v, but the hash went from %s to %s", a.Key, a.Identity, s.Hash(), changed.Hash())
			}
			if (changed.SeriesHash() != s.SeriesHash()) != (a.Identity && !a.Moving) {
				t.Fatalf("%s: moving %v, but the series hash does not agree", a.Key, a.Moving)
			}
		}
	})
}

// TestAxis_Sharing: settings that share maps do not change one another.
func TestAxis_Sharing(t *testing.T) {
	t.Parallel()
	a := valid()
	a.Engine.Args = map[string]string{"x": "1"}
	b := a
	axis, entry, _ := setting.LookupAxis("engine.args.x")
	axis.SetEntry(&b, entry, "2")
	if a.Engine.Args["x"] != "1" || b.Engine.Args["x"] != "2" {
		t.Errorf("%v %v", a.Engine.Args, b.Engine.Args)
	}
	axis.Clear(&b)
	if len(b.Engine.Args) != 0 {
		t.Errorf("not cleared: %v", b.Engine.Args)
	}
}

func TestFlatValues(t *testing.T) {
	t.Parallel()
	s := valid()
	s.Engine.Args = map[string]string{"max-num-seqs": "256"}
	s.Engine.Env = map[string]string{"A": "b"}
	got := s.FlatValues()
	for key, want := range map[string]any{
		"engine.args.max-num-seqs": "256", "engine.env.A": "b", "workload.duration": 60.0, "workload.arrival.rate": 8.0,
		"workload.arrival.concurrency": nil, "hardware.gpus": int64(1), "image.digest": setting.Unpinned,
	} {
		if got[key] != want {
			t.Errorf("%s: %v, want %v", key, got[key], want)
		}
	}
	if _, ok := got["engine.args"]; ok {
		t.Error("engine.args is still there")
	}
}
