package loadgen

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sbench/internal/result"
	"sbench/internal/setting"
	"sbench/tests/conformance/playback"
)

// FuzzAnswer: any bytes, in any three pieces, give the row that they give in one
// piece but for the times; nothing panics or grows beyond its input; and an answer
// that is not whole is no success.
func FuzzAnswer(f *testing.F) {
	for _, c := range playback.Cases() {
		f.Add(c.Bytes(), uint16(len(c.Bytes())/3), uint16(2*len(c.Bytes())/3), c.Ending == playback.Close)
	}
	var a arena
	f.Fuzz(func(t *testing.T, answer []byte, i, j uint16, closes bool) {
		ending := playback.KeepOpen
		if closes {
			ending = playback.Close
		}
		x, y := int(i)%(len(answer)+1), int(j)%(len(answer)+1)
		x, y = min(x, y), max(x, y)
		whole := received(&a, 3, ending, answer)
		cut := received(&a, 3, ending, answer[:x], answer[x:y], answer[y:])
		times := cmpopts.IgnoreFields(result.Request{}, "THeaders", "TByte1", "TChunk1", "TTok1", "TContent1", "TTokN", "TUsage", "TDone", "TEnd", "EventTimes")
		if diff := cmp.Diff(whole, cut, times); diff != "" {
			t.Fatalf("cut at %d and %d (-whole +cut):\n%s", x, y, diff)
		}
		if whole.Bytes > int64(len(answer)) || len(whole.EventTimes) > len(answer) {
			t.Fatalf("%d bytes and %d events out of %d bytes", whole.Bytes, len(whole.EventTimes), len(answer))
		}
		switch whole.Outcome {
		case result.OutcomeOK, result.OutcomeLengthMismatch:
			if whole.HTTPStatus != 200 || whole.TTokN == nil || (whole.TDone == nil && whole.FinishReason == "" && len(whole.EventTimes) > 0) {
				t.Fatalf("a success: %+v", whole)
			}
		case "":
			t.Fatal("no outcome")
		default:
			if whole.Detail == "" {
				t.Fatalf("%s without a reason", whole.Outcome)
			}
		}
	})
}

// FuzzPacked: a body packed piece by piece is the body, and is read as if nothing in
// it were familiar.
func FuzzPacked(f *testing.F) {
	event := string(oneEvent(1)[4:])
	f.Add([]byte(event+event+"data: [DONE]\n\n"), uint16(40))
	f.Add([]byte(strings.Repeat(event, 3)+strings.ReplaceAll(event, "w1", `\n`)+strings.ReplaceAll(event, "w1", "é")), uint16(len(event)))
	for _, c := range playback.Cases() {
		f.Add(playback.Body(c.Bytes()), uint16(len(c.Bytes())/2))
	}
	f.Fuzz(func(t *testing.T, body []byte, size uint16) {
		var a arena
		defer a.release()
		x := &exchange{dispatch: 1, ending: endingComplete}
		x.reply.status, x.reply.stream = 200, true
		for p := body; len(p) > 0; {
			n := min(len(p), max(1, int(size)))
			x.append(&a, p[:n])
			p = p[n:]
		}
		if got := x.body(nil); !bytes.Equal(got, body) {
			t.Fatalf("%q became %q", body, got)
		}
		if len(body) == 0 {
			return
		}
		x.mark(&a, 1)
		d := decoder{request: setting.Request{}}
		if diff := cmp.Diff(readWhole(body), d.row(x)); diff != "" {
			t.Fatalf("-each by itself +familiar\n%s", diff)
		}
	})
}
