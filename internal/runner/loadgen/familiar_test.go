package loadgen

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sbench/internal/result"
	"sbench/internal/setting"
)

// readWhole decodes an answer without what is familiar: as one literal after the
// other, none of which is a pattern.
func readWhole(body []byte) result.Request {
	var a arena
	defer a.release()
	x := &exchange{dispatch: 1, ending: endingComplete}
	x.reply.status, x.reply.stream = 200, true
	for i := 0; i < len(body); i += minPattern - 1 {
		x.packLiteral(&a, body[i:min(len(body), i+minPattern-1)])
	}
	x.size = len(body)
	x.mark(&a, 1)
	d := decoder{request: setting.Request{}}
	return d.row(x)
}

// Events that differ from the one before in any way, hostile ones too, are read as
// if each were read by itself.
func TestFamiliar_AgreesWithReading(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(
		rapid.SampledFrom([]string{" a", " b", " word", "", "x", `\n`, `\t`, `\q`, `\u0041`, `\u00zz`, `"`, "\x01", "é", "è", "\xc3a", "\xc3", "日本", `a","text":"b`, " [DONE]"}),
		rapid.StringN(0, 8, 16),
	)
	shapes := []func(text string) string{
		func(s string) string {
			return `data: {"choices":[{"index":0,"text":"` + s + `","finish_reason":null}]}` + "\n\n"
		},
		func(s string) string {
			return `data: {"choices":[{"index":0,"delta":{"reasoning_content":"` + s + `"}}]}` + "\n\n"
		},
		func(s string) string {
			return `data: {"choices":[{"index":0,"delta":{"content":"` + s + `"},"n":` + itoa(len(s)) + `}]}` + "\n\n"
		},
		func(s string) string {
			return `data: {"choices":[{"text":"` + s + `"}],"usage":{"completion_tokens":` + itoa(len(s)) + `}}` + "\n\n"
		},
		func(s string) string {
			return `data: {"choices":[{"text":"` + s + `","finish_reason":"length"}]}` + "\r\n\r\n"
		},
		func(s string) string { return "event: error\ndata: {\"message\":\"" + s + "\"}\n\n" },
		func(s string) string { return ": " + s + "\n\n" },
		func(string) string { return "data: [DONE]\n\n" },
		func(string) string { return "event: x\n" },
	}
	rapid.Check(t, func(t *rapid.T) {
		var a arena
		defer a.release()
		x := &exchange{dispatch: 1, ending: endingComplete}
		x.reply.status, x.reply.stream = 200, true
		var body []byte
		shape := rapid.IntRange(0, len(shapes)-1).Draw(t, "shape")
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			if rapid.IntRange(0, 5).Draw(t, "change") == 0 {
				shape = rapid.IntRange(0, len(shapes)-1).Draw(t, "shape")
			}
			piece := []byte(shapes[shape](texts.Draw(t, "text")))
			x.append(&a, piece)
			body = append(body, piece...)
		}
		x.mark(&a, 1)
		d := decoder{request: setting.Request{}}
		if diff := cmp.Diff(readWhole(body), d.row(x)); diff != "" {
			t.Fatalf("%q:\n-each by itself +familiar\n%s", body, diff)
		}
	})
}
