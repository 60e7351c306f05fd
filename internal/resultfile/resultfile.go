// Package resultfile is the Parquet form of an attempt: the four kinds of rows,
// each carrying the key of its attempt and the hardware class, so that a file
// says by itself what it is. It promises that what Encode wrote Decode returns,
// and that a damaged file is an error, never a panic. Null is a nil pointer.
package resultfile

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
func DecodeLoad(r io.ReaderAt, size int64) (l *Load, err error) {
	defer recovered(&err)
	f, err := open(r, size)
	if err != nil {
		return nil, fmt.Errorf("decode load: %w", err)
	}
	text, ok := f.Lookup(loadKey)
	if !ok {
		return nil, nil
	}
	l = &Load{}
	if err := json.Unmarshal([]byte(text), l); err != nil {
		return nil, fmt.Errorf("decode load: %w", err)
	}
	return l, nil
}

// DecodeRequests reads them back.
func DecodeRequests(r io.ReaderAt, size int64) ([]result.Request, error) {
	requests, err := decode[result.Request](r, size)
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
	samples, err := decode[result.Telemetry](r, size)
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
	rows := make([]T, 0, min(n, chunk))
	for i := range n {
		rows = append(rows, row(i))
		if len(rows) == chunk || i == n-1 {
			if _, err := pw.Write(rows); err != nil {
				return fmt.Errorf("encode parquet: %w", err)
			}
			rows = rows[:0]
		}
	}
	if err := pw.Close(); err != nil {
		return fmt.Errorf("encode parquet: %w", err)
	}
	return nil
}

func options() []parquet.WriterOption {
	return []parquet.WriterOption{
		parquet.Compression(&parquet.Zstd),
		parquet.CreatedBy("sbench", result.MetricsVersion, ""),
	}
}

// decode reads the columns of T by their names. T has no embedded structs: over
// those the library (v0.32) reads null as a pointer to zero.
func decode[T any](r io.ReaderAt, size int64) (rows []T, err error) {
	defer recovered(&err)
	f, err := open(r, size)
	if err != nil {
		return nil, err
	}
	if err := checkColumns(f.Schema(), parquet.SchemaOf(new(T))); err != nil {
		return nil, err
	}
	reader := parquet.NewGenericReader[T](f)
	defer reader.Close()
	for int64(len(rows)) < f.NumRows() {
		batch := make([]T, min(chunk, f.NumRows()-int64(len(rows))))
		n, err := reader.Read(batch)
		rows = append(rows, batch[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, io.ErrNoProgress
		}
	}
	if int64(len(rows)) != f.NumRows() {
		return nil, fmt.Errorf("%d rows of %d: %w", len(rows), f.NumRows(), io.ErrUnexpectedEOF)
	}
	return rows, nil
}

// open checks what the library would believe: it allocates as much as the footer
// says that it is long.
func open(r io.ReaderAt, size int64) (*parquet.File, error) {
	var tail [8]byte
	if size < 12 {
		return nil, errors.New("not a parquet file")
	}
	if _, err := r.ReadAt(tail[:], size-8); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if footer := int64(binary.LittleEndian.Uint32(tail[:])); string(tail[4:]) != "PAR1" || footer > size-12 {
		return nil, errors.New("not a parquet file, or cut")
	}
	f, err := parquet.OpenFile(r, size, parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	if rows := f.NumRows(); rows < 0 || rows > 1000+4*size {
		// Rows differ in their times, so that not even the best compression gets
		// far below a byte each.
		return nil, fmt.Errorf("%d bytes cannot hold %d rows", size, rows)
	}
	return f, nil
}

// checkColumns refuses files of another kind of row, which would be read as
// zeros. A column that is optional may be missing.
func checkColumns(file, want *parquet.Schema) error {
	for _, path := range want.Columns() {
		w, _ := want.Lookup(path...)
		got, ok := file.Lookup(path...)
		switch {
		case !ok && w.Node.Optional():
		case !ok:
			return fmt.Errorf("column %s is missing", strings.Join(path, "."))
		case got.Node.Type().Kind() != w.Node.Type().Kind():
			return fmt.Errorf("column %s is of another type", strings.Join(path, "."))
		}
	}
	return nil
}

// recovered turns the library's panic over a damaged file into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("damaged parquet file: %v", p)
	}
}
