package main

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/hybridgroup/yzma/pkg/llama"
)

// server answers llama-server's API for one model.
type server struct {
	options     options
	build       string
	vocab       llama.Vocab
	vocabSize   int32
	trained     int // context length the model was trained with
	slotContext int // tokens that one request may fill
	template    string
	parameters  uint64
	batcher     *batcher
	ids         atomic.Int64
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.complete(false))
	mux.HandleFunc("POST /v1/chat/completions", s.complete(true))
	mux.HandleFunc("POST /tokenize", s.tokenizeText)
	mux.HandleFunc("POST /detokenize", s.detokenize)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /props", s.props)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, &apiError{http.StatusNotFound, "File Not Found", "not_found_error"})
	})
	return mux
}

func (s *server) tokenizeText(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Content    string `json:"content"`
		WithPieces bool   `json:"with_pieces"`
	}
	if err := decodeBody(r, &q); err != nil {
		writeError(w, err)
		return
	}
	tokens, err := s.tokenize(q.Content)
	if err != nil {
		writeError(w, err)
		return
	}
	if !q.WithPieces {
		writeJSON(w, http.StatusOK, map[string]any{"tokens": append([]llama.Token{}, tokens...)})
		return
	}
	type piece struct {
		ID    llama.Token `json:"id"`
		Piece string      `json:"piece"`
	}
	list := make([]piece, len(tokens))
	buffer := make([]byte, 128)
	for i, token := range tokens {
		n := llama.TokenToPiece(s.vocab, token, buffer, 0, true)
		list[i] = piece{token, string(buffer[:max(n, 0)])}
	}
	writeJSON(w, http.StatusOK, map[string]any{"tokens": list})
}

func (s *server) detokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tokens []llama.Token `json:"tokens"`
	}
	if err := decodeBody(r, &q); err != nil {
		writeError(w, err)
		return
	}
	var text []byte
	buffer := make([]byte, 128)
	for _, token := range q.Tokens {
		if token < 0 || int32(token) >= s.vocabSize {
			writeError(w, invalid("token id %d is not in [0, %d)", token, s.vocabSize))
			return
		}
		n := llama.TokenToPiece(s.vocab, token, buffer, 0, true)
		text = append(text, buffer[:max(n, 0)]...)
	}
	writeJSON(w, http.StatusOK, map[string]any{"content": string(text)})
}

func (s *server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": s.options.Alias, "object": "model", "owned_by": "llamacpp",
		"meta": map[string]any{"n_vocab": s.vocabSize, "n_ctx": s.slotContext, "n_ctx_train": s.trained, "n_params": s.parameters},
	}}})
}

func (s *server) props(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"default_generation_settings": map[string]any{"n_ctx": s.slotContext},
		"total_slots":                 s.options.Parallel,
		"model_alias":                 s.options.Alias,
		"model_path":                  s.options.Model,
		"chat_template":               s.template,
		"build_info":                  s.build,
	})
}

// metrics speaks the names of llama.cpp's own exporter.
func (s *server) metrics(w http.ResponseWriter, _ *http.Request) {
	c := &s.batcher.counters
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	counter := func(name, help string, value any) {
		fmt.Fprintf(w, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s counter\nllamacpp:%s %v\n", name, help, name, name, value)
	}
	gauge := func(name, help string, value any) {
		fmt.Fprintf(w, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s gauge\nllamacpp:%s %v\n", name, help, name, name, value)
	}
	counter("prompt_tokens_total", "Number of prompt tokens processed", c.promptTokens.Load())
	counter("prompt_seconds_total", "Time spent processing prompts", float64(c.promptNanos.Load())/1e9)
	counter("tokens_predicted_total", "Number of generation tokens processed", c.generatedTokens.Load())
	counter("tokens_predicted_seconds_total", "Time spent generating tokens", float64(c.decodeNanos.Load())/1e9)
	counter("n_decode_total", "Number of llama_decode() calls", c.decodes.Load())
	gauge("n_busy_slots_per_decode", "Mean number of busy slots in a llama_decode() call", float64(c.busySlots.Load())/float64(max(c.decodes.Load(), 1)))
	gauge("requests_processing", "Number of requests processing", c.processing.Load())
	gauge("requests_deferred", "Number of requests deferred", c.deferred.Load())
}
