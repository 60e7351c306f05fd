package resultfile

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/parquet-go/parquet-go"
	"pgregory.net/rapid"

	"sbench/internal/result"
)

var attempt = result.Attempt{
	RunID: 7, Sweep: 3, Repeat: 2, SettingHash: "aa", SeriesHash: "bb", Cluster: "c1",
	JobIDRaw: 4711, RestartCount: 1, HardwareClass: "emulated", Site: "dev", Token: "sb-x", TaskIndex: 4,
}

func TestRequests_RoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.SliceOfN(rapid.Make[result.Request](), 0, 12).Draw(t, "requests")
		// More rows than are handed over at a time.
		for range rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6}).Draw(t, "doublings") {
			requests = append(requests, requests...)
		}
		var b bytes.Buffer
		if err := EncodeRequests(&b, attempt, requests); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeRequests(bytes.NewReader(b.Bytes()), int64(b.Len()))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(requests, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-wrote +read):\n%s", diff)
		}
	})
}

func TestTelemetry_RoundTrip(t *testing.T) {
	t.Parallel()
	zero := 0.0
	samples := []result.Telemetry{
		{T: 1, Source: "gpu0", Name: "power_watts"},
		{T: 2, Source: "gpu0", Name: "power_watts", Value: &zero},
	}
	var b bytes.Buffer
	if err := EncodeTelemetry(&b, attempt, samples); err != nil {
		t.Fatal(err)
	}
	got, err := DecodeTelemetry(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(samples, got); diff != "" {
		t.Errorf("(-wrote +read):\n%s", diff)
	}
	keys, err := parquet.Read[Key](bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if diff := cmp.Diff(KeyOf(attempt), key); diff != "" {
			t.Errorf("key (-want +got):\n%s", diff)
		}
	}
}
