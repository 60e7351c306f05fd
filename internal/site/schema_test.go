package site_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"sbench/internal/site"
)

type object = map[string]any

// special are the schemas that a Go type does not say, by the key's path.
func special() map[string]object {
	words := func(values ...string) object { return object{"enum": values} }
	name := object{"type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$"}
	path := object{"type": "string", "pattern": "^/[^:,]*$"}
	size := object{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?([kKMGTP]i?)?B$`}
	out := map[string]object{
		"hardware_class": words("real", "emulated"), "submit_as": words("user", "service"),
		"fair_share.source": words("equal", "slurm"),
		"jobs.exclusive":    words("exclusive", "gres"), "hardware.*.link": words("nvlink", "pcie", "none"),
		"jobs.memory":               {"anyOf": []any{object{"type": "string", "pattern": "^([0-9]+[KMGT]?)?$"}, object{"type": "integer", "minimum": 0}}},
		"jobs.options.*":            {"type": []string{"string", "number", "boolean"}},
		"engine.env.*":              {"type": []string{"string", "number", "boolean"}},
		"hardware.*.gres":           {"type": "string", "pattern": "^gpu(:[A-Za-z0-9_.-]+)?$"},
		"hardware.*.memory_per_gpu": size,
		"name":                      name, "cluster": name, "secrets.*": path, "slurm.conf": path, "slurm.bin": path,
		"engine.hash": words("always", "once-per-node"), "engine.clocks.method": words("none", "slurm", "helper"),
		"engine.cache_limit": size, "engine.min_shm": size, "engine.min_memlock": size, "engine.verify_key": path,
		"mirrors.[].url": {"type": "string", "pattern": "^sftp://[^/@:?#]+@[^/@?#]+/[^?#]*$"}, "mirrors.[].key": path, "mirrors.[].known_hosts": path,
		"engine.binds.[].source": path, "engine.binds.[].target": path,
	}
	for f := range reflect.TypeFor[site.Paths]().Fields() {
		out["paths."+f.Tag.Get("json")] = path
	}
	return out
}

// comments are the comments of the fields of site.go, by "Type.Field".
func comments(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "site.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if fields, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range fields.Fields.List {
				text := f.Doc.Text() + f.Comment.Text()
				for _, name := range f.Names {
					out[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
				}
			}
		}
		return true
	})
	return out
}

// schemaOf is the schema of a Go type as the loader reads it.
func schemaOf(path string, typ reflect.Type, doc map[string]string) object {
	if s, ok := special()[path]; ok {
		return maps.Clone(s)
	}
	switch {
	case typ == reflect.TypeFor[time.Duration]():
		return object{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d))+$`}
	case typ.Kind() == reflect.Struct:
		properties := object{}
		for f := range typ.Fields() {
			key := f.Tag.Get("json")
			at := key
			if path != "" {
				at = path + "." + key
			}
			s := schemaOf(at, f.Type, doc)
			if text := doc[typ.Name()+"."+f.Name]; text != "" {
				s["description"] = text
			}
			properties[key] = s
		}
		kind := any("object")
		if path == "partitions.*" {
			kind = []string{"object", "null"} // "gpu:" alone
		}
		return object{"type": kind, "properties": properties, "additionalProperties": false}
	case typ.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(path+".*", typ.Elem(), doc)}
	case typ.Kind() == reflect.Slice:
		return object{"type": "array", "items": schemaOf(path+".[]", typ.Elem(), doc)}
	case typ.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case typ.Kind() == reflect.String:
		return object{"type": "string"}
	default:
		return object{"type": "integer"}
	}
}

func siteSchema(t *testing.T) object {
	t.Helper()
	s := schemaOf("", reflect.TypeFor[site.Site](), comments(t))
	properties := s["properties"].(object)
	properties["site"] = object{"const": "v1"}
	tiers := properties["priorities"].(object)
	tier := tiers["additionalProperties"]
	delete(tiers, "additionalProperties")
	tiers["properties"], tiers["additionalProperties"] = object{"urgent": tier, "normal": tier, "bulk": tier}, false
	properties["hardware"].(object)["minProperties"] = 1
	binds := properties["engine"].(object)["properties"].(object)["binds"].(object)
	binds["items"].(object)["required"] = []string{"source"}
	properties["mirrors"].(object)["items"].(object)["required"] = []string{"url", "key", "known_hosts"}
	properties["paths"].(object)["required"] = []string{"spool", "results", "models", "images", "cache"}
	s["required"] = []string{"site", "name", "cluster", "hardware", "paths"}
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "sbench site file"
	return s
}

func TestVerify_SiteSchema(t *testing.T) {
	t.Parallel()
	b, err := json.MarshalIndent(siteSchema(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../schema/site.schema.json", string(b)+"\n")
}

// TestSchema_Agrees: what the loader accepts, an editor does not underline, and
// what it refuses for its shape alone is underlined.
func TestSchema_Agrees(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../schema/site.schema.json")
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
	full := read(t, "testdata/full.yaml")
	for _, file := range append(examples(t), "testdata/full.yaml") {
		if err := validate(read(t, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	shape := []string{"unknown-keys", "missing-keys", "wrong-types", "wrong-units", "paths", "gres", "secrets", "binds", "mirrors", "words", "no-hardware"}
	for name, e := range faults() {
		if !slices.Contains(shape, name) {
			continue
		}
		text := string(full)
		for ; len(e) > 1; e = e[2:] {
			text = strings.Replace(text, e[0], e[1], 1)
		}
		if validate([]byte(text)) == nil {
			t.Errorf("%s: the schema accepts it", name)
		}
	}
}
