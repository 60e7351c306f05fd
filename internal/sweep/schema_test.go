package sweep_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"sbench/internal/metrics"
	"sbench/internal/quality"
	"sbench/internal/setting"
	"sbench/internal/sweep"
)

type object = map[string]any

const (
	durationForm = `^(0|[0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d)([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*)$`
	rateForm     = `^[0-9]+(\.[0-9]+)?/(s|sec|min|m|h)$`
)

// matching is a string of a form.
func matching(pattern string) object { return object{"type": "string", "pattern": pattern} }

// aDuration is a duration; a plain 0 needs no unit.
func aDuration() object { return object{"anyOf": []any{matching(durationForm), object{"const": 0}}} }

func listOf(item object) object { return object{"type": "array", "items": item, "minItems": 1} }

// rendered is a value that an engine gets as text.
func rendered() object { return object{"type": []string{"string", "number", "boolean"}} }

// record is a mapping that has all of its keys.
func record(fields object) object {
	return object{
		"type": "object", "properties": fields, "required": slices.Sorted(maps.Keys(fields)), "additionalProperties": false,
	}
}

// axisSchema is the schema of a value of an axis.
func axisSchema(a setting.Axis) object {
	s := object{"type": "string"}
	integer, number := object{"type": "integer", "minimum": 0}, object{"type": "number"}
	switch a.Type {
	case setting.TypeWord:
		words := a.Words
		if a.Pin {
			words = append(words[:len(words):len(words)], setting.Unpinned)
		}
		s = object{"enum": words}
	case setting.TypeInt:
		s = object{"type": "integer"}
	case setting.TypeFloat:
		s = number
	case setting.TypeBool:
		s = object{"type": "boolean"}
	case setting.TypeDuration:
		s = aDuration()
	case setting.TypeRate:
		s = matching(rateForm)
	case setting.TypeDigest:
		s = matching("^([sS][hH][aA]256:[0-9a-fA-F]{64}|unpinned)$")
	case setting.TypeFrequency:
		s = matching(`^([0-9]+(\.[0-9]+)?[MG]Hz|unpinned)$`)
	case setting.TypePower:
		s = matching(`^([0-9]+(\.[0-9]+)?k?W|unpinned)$`)
	case setting.TypeMap:
		s = object{"type": "object", "additionalProperties": rendered()}
	case setting.TypeStrings:
		s = object{"type": "array", "items": rendered()}
	case setting.TypeRates:
		s = object{"type": "array", "items": matching(rateForm)}
	case setting.TypeStages:
		s = listOf(record(object{"rate": matching(rateForm), "duration": aDuration()}))
	case setting.TypeBins:
		s = listOf(record(object{"min": integer, "max": integer, "weight": number}))
	case setting.TypePairs:
		s = listOf(record(object{"input": integer, "output": integer, "weight": number}))
	case setting.TypeText, setting.TypeVersion, setting.TypePath:
	}
	s["description"] = a.Doc
	if a.Default != "" {
		s["description"] = a.Doc + " (default " + a.Default + ")"
	}
	return s
}

// sweepSchema is the JSON Schema of a sweep file, for editors. It refuses no
// file that the parser accepts; what needs arithmetic is left to sbench
// validate. Each axis and each block of axes is defined once.
func sweepSchema() object {
	defs := object{}
	ref := func(key string) object { return object{"$ref": "#/$defs/" + key} }
	block := func(key string) object {
		if defs[key] == nil {
			defs[key] = object{"type": "object", "additionalProperties": false, "properties": object{}}
		}
		return defs[key].(object)["properties"].(object)
	}
	for _, a := range setting.Axes() {
		defs[a.Key] = axisSchema(a)
		for key := a.Key; ; {
			parent, name := "setting", key
			if i := strings.LastIndexByte(key, '.'); i >= 0 {
				parent, name = key[:i], key[i+1:]
			}
			block(parent)[name] = ref(key)
			if parent == "setting" {
				break
			}
			key = parent
		}
	}
	single, lists := object{}, object{}
	for key := range defs {
		if key != "setting" {
			single[key], lists[key] = ref(key), listOf(ref(key))
		}
	}
	const entries = `^engine\.(args|env)\..+$`
	defs["point"] = object{
		"type": "object", "properties": single, "patternProperties": object{entries: rendered()}, "additionalProperties": false,
	}
	group := object{
		"type": "object", "properties": lists, "patternProperties": object{entries: listOf(rendered())}, "additionalProperties": false,
	}
	defs["group"] = group
	points := func(doc string) object { return object{"type": "array", "items": ref("point"), "description": doc} }
	matrix := maps.Clone(lists)
	matrix["zip"] = object{"type": "array", "items": ref("group"), "description": "groups of axes that vary together"}
	matrix["where"] = object{
		"anyOf": []any{object{"type": "string"}, object{"type": "array", "items": object{"type": "string"}}}, "description": "expressions over axes; a point must meet all",
	}
	matrix["exclude"], matrix["include"] = points("points that are left out"), points("points that are added whole")
	return object{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "sbench sweep file", "type": "object",
		"required": []string{"sweep", "name", "setting"}, "additionalProperties": false, "$defs": defs,
		"properties": merged(headSchema(), object{
			"setting": ref("setting"),
			"matrix":  object{"type": "object", "properties": matrix, "patternProperties": object{entries: listOf(rendered())}, "additionalProperties": false},
		}),
	}
}

// headSchema is what a file says beside its settings.
func headSchema() object {
	share := object{"type": "number", "minimum": 0, "maximum": 1}
	count := object{"type": "integer", "minimum": 1, "maximum": 1000}
	name := matching("^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
	var names []string
	for _, m := range metrics.Table() {
		names = append(names, m.Name)
	}
	return object{
		"sweep": object{"const": "v1"}, "name": name, "description": object{"type": "string"}, "site": name,
		"priority": object{"enum": []string{"urgent", "normal", "bulk"}},
		"repeats": object{"oneOf": []any{count, record(object{
			"min": count, "max": count, "until": record(object{"metrics": listOf(object{"enum": names}), "relative_ci": share}),
		})}},
		// YAML 1.1 editors read a bare off as false.
		"reuse": object{"oneOf": []any{object{"enum": []any{"off", false}}, object{
			"type": "object", "additionalProperties": false, "required": []string{"max_age"}, "properties": object{"max_age": aDuration(), "canary": share},
		}}},
		"slo": object{
			"type": "object", "additionalProperties": false,
			"patternProperties": object{"^(ttft|ttft_service|ttfo|e2e|tpot)(_p(50|90|95|99))?$": aDuration()},
		},
		"max_error_rate": share,
		"quality":        qualitySchema(),
	}
}

// qualitySchema is what is asked after each measurement.
func qualitySchema() object {
	whole := func(least, most int) object { return object{"type": "integer", "minimum": least, "maximum": most} }
	return object{
		"type": "object", "additionalProperties": false, "required": []string{"method"},
		"description": "questions to the engine after each measurement, and how its answers are scored",
		"properties": object{
			"method":            object{"enum": quality.Methods()},
			"items":             record(object{"path": object{"type": "string", "minLength": 1}, "digest": matching("^[Ss][Hh][Aa]256:[0-9A-Fa-f]{64}$")}),
			"command":           listOf(rendered()),
			"count":             whole(1, quality.MaxItems),
			"endpoint":          object{"enum": []string{"completions", "chat"}},
			"max_output_tokens": whole(1, quality.MaxOutputTokens),
			"temperature":       object{"type": "number", "minimum": 0, "maximum": 2},
			"seed":              whole(0, 1<<31-1),
			"concurrency":       whole(1, quality.MaxConcurrency),
			"time_limit":        aDuration(),
		},
	}
}

func merged(a, b object) object {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func TestVerify_SweepSchema(t *testing.T) {
	t.Parallel()
	b, err := json.MarshalIndent(sweepSchema(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	generated(t, "schema/sweep.schema.json", string(b)+"\n")
}

// TestSchema_Agrees: what the parser accepts, an editor does not underline, and
// what it refuses for its shape alone is underlined.
func TestSchema_Agrees(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../schema/sweep.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	validate := func(src []byte) error {
		var doc any
		if err := yaml.Unmarshal(src, &doc); err != nil {
			return err
		}
		b, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		instance, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
		if err != nil {
			return err
		}
		return schema.Validate(instance)
	}
	plain := read(t, "testdata/plain.yaml")
	good := [][]byte{plain, read(t, "testdata/manual.yaml"), read(t, "../../docs/examples/demo.yaml"), read(t, "../../docs/examples/quality.yaml")}
	for _, matrix := range []string{
		"  workload.arrival: [{process: closed, concurrency: 4}]\n  where: workload.seed == 1\n",
		"  image.digest: [\"SHA256:" + strings.Repeat("AB", 32) + "\"]\n  environment.sm_clock: [1.41GHz, unpinned]\n",
		"  workload.warmup: [0, 1m30s]\n  workload.ladder: [[1/s, 120/min]]\n  include: [{engine.args.x: true, image: {path: a.sif}}]\n",
		"  workload.input_tokens: [{distribution: histogram, bins: [{min: 1, max: 2, weight: 0.5}]}]\n",
		"  zip: [{parallel.tensor: [1, 2], hardware.gpus: [1, 2]}]\n  exclude: [{engine: {kind: vllm}}]\n",
	} {
		good = append(good, withMatrix(t, matrix))
	}
	for _, src := range good {
		if f, list := sweep.Parse(src, "f"); f == nil {
			t.Errorf("the parser refuses\n%s\n%s", src, list.Text())
		}
		if err := validate(src); err != nil {
			t.Errorf("the schema refuses\n%s\n%v", src, err)
		}
	}
	for _, name := range []string{
		"unknown-keys", "missing-keys", "wrong-version", "wrong-types", "wrong-units", "version-numbers", "words", "roles", "repeats-zero", "repeats-incomplete",
		"slo", "reuse", "reuse-never", "priority", "quality-words", "quality-items", "matrix-axes", "matrix-values", "zip-mapping", "oci-kind", "setting-list",
	} {
		text := string(plain)
		for e := faults()[name]; len(e) > 1; e = e[2:] {
			text = strings.Replace(text, e[0], e[1], 1)
		}
		if validate([]byte(text)) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
}
