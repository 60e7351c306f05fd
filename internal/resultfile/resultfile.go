// Package resultfile is the Parquet form of an attempt: the five kinds of rows,
// each carrying the key of its attempt and the hardware class, so that a file
// says by itself what it is. It promises that what Encode wrote Decode returns,
// and that a damaged or hostile file is an error: never a panic, and never more
// memory than its size justifies. It refuses encodings that no runner writes.
// Null is a nil pointer.
package resultfile

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"

	"sbench/internal/result"
)

// Key is what every row of every kind carries.
type Key struct {
	RunID         int64  `parquet:"run_id"`
	Repeat        int32  `parquet:"repeat"`
	SettingHash   string `parquet:"setting_hash,dict"`
	Cluster       string `parquet:"cluster,dict"`
	JobIDRaw      int64  `parquet:"job_id_raw"`
	RestartCount  int32  `parquet:"restart_count"`
	HardwareClass string `parquet:"hardware_class,dict"` // real or emulated
}

// KeyOf returns the key of an attempt's rows.
func KeyOf(a result.Attempt) Key {
	return Key{
		RunID: a.RunID, Repeat: int32(a.Repeat), SettingHash: a.SettingHash,
		Cluster: a.Cluster, JobIDRaw: a.JobIDRaw, RestartCount: int32(a.RestartCount),
		HardwareClass: a.HardwareClass,
	}
}

type requestRow struct {
	Key
	result.Request
}

type telemetryRow struct {
	Key
	result.Telemetry
}

// EncodeRequests writes the requests of an attempt.
func EncodeRequests(w io.Writer, a result.Attempt, requests []result.Request) error {
	key := KeyOf(a)
	return encode(w, len(requests), func(i int) requestRow { return requestRow{key, requests[i]} })
}

// Load is what a file of requests that stands alone says about them: it has no
// attempt beside it.
type Load struct {
	MetricsVersion string             `json:"metrics_version"`
	Windows        []LoadWindow       `json:"windows"`
	SLO            map[string]float64 `json:"slo"` // limits in s, by the metric they are set on
}

// LoadWindow is a load point as it was computed when the file was written.
type LoadWindow struct {
	Index       int            `json:"index"`
	OfferedRate float64        `json:"offered_rate_per_s"`
	Start       int64          `json:"start_ns"`
	End         int64          `json:"end_ns"`
	Metrics     result.Metrics `json:"metrics"`
}

// loadKey is where the footer of a file of requests has its Load.
const loadKey = "sbench.load"

// EncodeLoad writes requests together with what is needed to compute their metrics
// again.
func EncodeLoad(w io.Writer, a result.Attempt, requests []result.Request, l Load) error {
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode load: %w", err)
	}
	key := KeyOf(a)
	return encode(w, len(requests), func(i int) requestRow { return requestRow{key, requests[i]} }, parquet.KeyValueMetadata(loadKey, string(text)))
}

// DecodeLoad reads what EncodeLoad wrote; nil where the file has no Load.
func DecodeLoad(r io.ReaderAt, size int64) (*Load, error) {
	content, err := readAll(r, size)
	if err != nil {
		return nil, fmt.Errorf("decode load: %w", err)
	}
	f, err := parseFooter(content)
	if err != nil {
		return nil, fmt.Errorf("decode load: %w", err)
	}
	text, ok := f.notes[loadKey]
	if !ok {
		return nil, nil
	}
	l := &Load{}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("decode load: %w", err)
	}
	return l, nil
}

// DecodeRequests reads them back. Reading is bounded: see ErrBounds.
func DecodeRequests(r io.ReaderAt, size int64) ([]result.Request, error) {
	requests, err := decode(r, size, requestBindings(), nil)
	if err != nil {
		return nil, fmt.Errorf("decode requests: %w", err)
	}
	return requests, nil
}

// DecodeRequestTimes reads what a percentile over requests needs: outcomes,
// times, token counts and events. The other fields are zero.
func DecodeRequestTimes(content []byte) ([]result.Request, error) {
	requests, err := decodeContent(content, requestBindings(), func(name string) bool {
		return strings.HasPrefix(name, "t_") || strings.HasSuffix(name, "_tokens") || strings.HasPrefix(name, "tokens_") ||
			slices.Contains([]string{"window", "phase", "outcome", eventTimes, eventTokens}, name)
	})
	if err != nil {
		return nil, fmt.Errorf("decode requests: %w", err)
	}
	return requests, nil
}

// EncodeTelemetry writes the samples of an attempt.
func EncodeTelemetry(w io.Writer, a result.Attempt, samples []result.Telemetry) error {
	key := KeyOf(a)
	return encode(w, len(samples), func(i int) telemetryRow { return telemetryRow{key, samples[i]} })
}

// DecodeTelemetry reads them back.
func DecodeTelemetry(r io.ReaderAt, size int64) ([]result.Telemetry, error) {
	samples, err := decode(r, size, telemetryBindings(), nil)
	if err != nil {
		return nil, fmt.Errorf("decode telemetry: %w", err)
	}
	return samples, nil
}

// chunk is how many rows are handed over at a time: bounds the memory of files
// with many events per row.
const chunk = 512

func encode[T any](w io.Writer, n int, row func(int) T, more ...parquet.WriterOption) error {
	pw := parquet.NewGenericWriter[T](w, append(options(), more...)...)
	if err := writeRows(pw, n, row); err != nil {
		return err
	}
	if err := pw.Close(); err != nil {
		return fmt.Errorf("encode parquet: %w", err)
	}
	return nil
}

func options() []parquet.WriterOption {
	return []parquet.WriterOption{
		parquet.Compression(&parquet.Zstd),
		// The column index says the same, once. Of long values neither is kept: each
		// bound would be a copy that is not compressed.
		parquet.DataPageStatistics(false),
		parquet.SkipPageBounds("detail"),
		parquet.SkipPageBounds("answer"),
		parquet.CreatedBy("sbench", result.MetricsVersion, ""),
	}
}
