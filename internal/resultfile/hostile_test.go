package resultfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"sbench/internal/result"
)

// TestBindings_Complete: every column that a kind writes is read back, but the key.
func TestBindings_Complete(t *testing.T) {
	t.Parallel()
	check := func(kind string, schema *parquet.Schema, names []string) {
		var want []string
		for _, path := range schema.Columns() {
			want = append(want, strings.Join(path, "."))
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-written +read):\n%s", kind, diff)
		}
	}
	check("requests", parquet.SchemaOf(result.Request{}), namesOf(requestBindings()))
	check("telemetry", parquet.SchemaOf(result.Telemetry{}), namesOf(telemetryBindings()))
}

func namesOf[T any](bindings []binding[T]) []string {
	var names []string
	for _, b := range bindings {
		names = append(names, b.name)
	}
	return names
}

// TestDecodeRequestTimes: the part is the part of the whole.
func TestDecodeRequestTimes(t *testing.T) {
	t.Parallel()
	one, two := int64(1), int32(2)
	full := []result.Request{
		{Index: 4, Phase: result.PhaseMeasure, Outcome: result.OutcomeOK, TIntended: 9, TEnd: &one, OutputTokens: &two, TokensFirst: &two, EventTimes: []int64{1, 2}, EventTokens: []int32{1, 1}},
		{Phase: result.PhaseWarmup, Outcome: result.OutcomeCutOff, Detail: "left out", FinishReason: "stop"},
	}
	var b bytes.Buffer
	if err := EncodeRequests(&b, attempt, full); err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRequestTimes(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	full[0].Index, full[1].Detail, full[1].FinishReason = 0, "", ""
	if diff := cmp.Diff(full, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDecode_Bombs: files of a few kilobytes that unpack to gigabytes are refused
// at a cost that their size justifies.
func TestDecode_Bombs(t *testing.T) {
	bombs := map[string]func(w io.Writer) error{
		"many equal rows": func(w io.Writer) error {
			return EncodeRequests(w, attempt, make([]result.Request, 60_000))
		},
		"many equal samples": func(w io.Writer) error {
			return EncodeTelemetry(w, attempt, make([]result.Telemetry, 400_000))
		},
		"many events at one time": func(w io.Writer) error {
			return EncodeRequests(w, attempt, []result.Request{{EventTimes: make([]int64, 1_500_000)}})
		},
		"a long text": func(w io.Writer) error {
			return EncodeRequests(w, attempt, []result.Request{{Detail: strings.Repeat("x", 24<<20)}})
		},
	}
	for name, write := range bombs {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		content := bytes.Clone(b.Bytes())
		b = bytes.Buffer{}
		for kind, read := range decoders() {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := read(content)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Errorf("%s: %d bytes were taken as %s", name, len(content), kind)
			}
			if used, may := after.TotalAlloc-before.TotalAlloc, uint64(decodedSlack+(decodedRatio+8)*len(content)); used > may {
				t.Errorf("%s of %d bytes, read as %s: %d bytes were allocated, may %d", name, len(content), kind, used, may)
			}
		}
		_, err := DecodeRequests(bytes.NewReader(content), int64(len(content)))
		_, err2 := DecodeTelemetry(bytes.NewReader(content), int64(len(content)))
		if !errors.Is(err, ErrBounds) && !errors.Is(err2, ErrBounds) {
			t.Errorf("%s: %v and %v, want ErrBounds", name, err, err2)
		}
	}
}

func decoders() map[string]func([]byte) error {
	return map[string]func([]byte) error{
		"result":    func(b []byte) error { _, err := DecodeResult(bytes.NewReader(b), int64(len(b))); return err },
		"windows":   func(b []byte) error { _, err := DecodeWindows(bytes.NewReader(b), int64(len(b))); return err },
		"requests":  func(b []byte) error { _, err := DecodeRequests(bytes.NewReader(b), int64(len(b))); return err },
		"telemetry": func(b []byte) error { _, err := DecodeTelemetry(bytes.NewReader(b), int64(len(b))); return err },
	}
}

// TestDecode_LyingFooter: counts and lengths in the metadata are not believed.
func TestDecode_LyingFooter(t *testing.T) {
	t.Parallel()
	huge := binary.AppendUvarint(nil, 1<<31-1)
	for name, footer := range map[string][]byte{
		"two thousand million columns": slices.Concat([]byte{0x29, 0xfc}, huge, []byte{0}),
		"two thousand million groups":  slices.Concat([]byte{0x49, 0xfc}, huge, []byte{0}),
		"a name of two gigabytes":      slices.Concat([]byte{0x29, 0x1c, 0x48}, huge, []byte{0, 0}),
		"nested without end":           bytes.Repeat([]byte{0x1c}, 1<<16),
		"a list within lists":          bytes.Repeat([]byte{0x19}, 1<<16),
		"nothing":                      {},
	} {
		file := slices.Concat([]byte("PAR1"), footer, binary.LittleEndian.AppendUint32(nil, uint32(len(footer))), []byte("PAR1"))
		for kind, read := range decoders() {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := read(file); err == nil {
				t.Errorf("%s was read as %s", name, kind)
			}
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
				t.Errorf("%s: %d bytes allocated", name, used)
			}
		}
	}
}

// BenchmarkDecode measures what the collector does for each attempt.
func BenchmarkDecode(b *testing.B) {
	var one, many bytes.Buffer
	if err := EncodeResult(&one, sample()); err != nil {
		b.Fatal(err)
	}
	requests := make([]result.Request, 1000)
	for i := range requests {
		at := int64(i) * 1e8
		requests[i] = result.Request{Index: int32(i), TIntended: at, TDispatch: &at, TTok1: &at, TEnd: &at, EventTimes: []int64{at, at + 10, at + 20}}
	}
	if err := EncodeRequests(&many, attempt, requests); err != nil {
		b.Fatal(err)
	}
	b.Run("result", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeResultNumbers(one.Bytes()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("requests", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := decoders()["requests"](many.Bytes()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("times", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := DecodeRequestTimes(many.Bytes()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
