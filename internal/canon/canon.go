// Package canon writes JSON in the canonical form of RFC 8785 (JCS) and hashes
// it: the same value always gives the same bytes, on every machine and in every
// language. It refuses what has no canonical form: NaN, infinities, invalid
// UTF-8, lone surrogates, duplicate keys, integers beyond ±(2^53−1).
package canon

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"
)

// MaxInt is the largest integer that every JSON implementation keeps exactly.
const MaxInt = 1<<53 - 1

// Marshal returns v in canonical form. Plain values (nil, bool, string, int,
// int64, float64, []any, []string, []float64, map[string]any,
// map[string]string) are written directly; everything else goes through
// encoding/json and its tags first.
func Marshal(v any) ([]byte, error) {
	return Append(nil, v)
}

// Append is Marshal onto dst.
func Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return AppendString(dst, v)
	case int:
		return appendInt(dst, int64(v))
	case int64:
		return appendInt(dst, v)
	case float64:
		return AppendFloat(dst, v)
	case []any:
		return appendList(dst, v, Append)
	case []string:
		return appendList(dst, v, AppendString)
	case []float64:
		return appendList(dst, v, AppendFloat)
	case map[string]any:
		return appendMap(dst, v, Append)
	case map[string]string:
		return appendMap(dst, v, AppendString)
	}
	if err := validStrings(reflect.ValueOf(v), 0); err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	text, err = Transform(text)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return append(dst, text...), nil
}

// Sum returns the SHA-256 of v's canonical form as 64 lower-case hex digits.
func Sum(v any) (string, error) {
	b, err := Marshal(v)
	if err != nil {
		return "", err
	}
	return Hash(b), nil
}

// Hash returns the SHA-256 of bytes that are canonical already, as 64
// lower-case hex digits.
func Hash(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:])
}

func appendInt(dst []byte, v int64) ([]byte, error) {
	if v > MaxInt || v < -MaxInt {
		return nil, fmt.Errorf("integer %d is beyond ±(2^53−1) and has no exact JSON number", v)
	}
	return strconv.AppendInt(dst, v, 10), nil
}

func appendList[T any](dst []byte, list []T, item func([]byte, T) ([]byte, error)) ([]byte, error) {
	dst = append(dst, '[')
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = item(dst, v); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendMap[T any](dst []byte, m map[string]T, item func([]byte, T) ([]byte, error)) ([]byte, error) {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, CompareKeys)
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = AppendString(dst, k); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		if dst, err = item(dst, m[k]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// AppendFloat writes f as ECMAScript does: the shortest digits that read back
// as f, without exponent from 1e-6 up to below 1e21. −0 is 0.
func AppendFloat(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%v has no JSON form", f)
	}
	if f == 0 {
		return append(dst, '0'), nil
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64), nil
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go writes at least two digits of exponent, ECMAScript as few as possible.
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst, nil
}

// AppendString writes s with the escapes of RFC 8785 and no others.
func AppendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("string %q is not valid UTF-8", s)
	}
	const hexDigits = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"'), nil
}

// CompareKeys orders object keys by their UTF-16 code units, as RFC 8785 asks.
// It differs from byte order only where a character beyond U+FFFF meets one
// from U+E000 to U+FFFF.
func CompareKeys(a, b string) int {
	for a != "" && b != "" {
		ra, na := utf8.DecodeRuneInString(a)
		rb, nb := utf8.DecodeRuneInString(b)
		if ra != rb {
			if (ra > 0xFFFF) == (rb > 0xFFFF) {
				return int(ra) - int(rb)
			}
			return int(firstUnit(ra)) - int(firstUnit(rb))
		}
		a, b = a[na:], b[nb:]
	}
	return len(a) - len(b)
}

// firstUnit is the first UTF-16 code unit of r. A surrogate never equals a
// character of the basic plane, so that it decides.
func firstUnit(r rune) rune {
	if r > 0xFFFF {
		return 0xD800 + (r-0x10000)>>10
	}
	return r
}

var errTooDeep = errors.New("value is nested too deeply")

// maxDepth bounds recursion into outside input.
const maxDepth = 1000

// validStrings refuses what encoding/json would silently replace by U+FFFD.
func validStrings(v reflect.Value, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); !utf8.ValidString(s) {
			return fmt.Errorf("string %q is not valid UTF-8", s)
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return validStrings(v.Elem(), depth+1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if err := validStrings(v.Field(i), depth+1); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := range v.Len() {
			if err := validStrings(v.Index(i), depth+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if err := validStrings(it.Key(), depth+1); err != nil {
				return err
			}
			if err := validStrings(it.Value(), depth+1); err != nil {
				return err
			}
		}
	default:
	}
	return nil
}
