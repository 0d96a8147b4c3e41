package app

import (
	"io"
	"log/slog"

	"doorward.dev/doorward/internal/config"
	"doorward.dev/doorward/internal/secret"
)

// Logger is a log whose lines never hold a known secret.
type Logger struct {
	*slog.Logger
	Redactor *secret.Redactor
}

// NewLogger writes to w as the settings say. Every line goes through the redactor as a whole, so
// that a secret is found wherever it stands: in a message, a name, a value or a wrapped error.
func NewLogger(w io.Writer, c config.Log) Logger {
	r := &secret.Redactor{}
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked by config
	opts := &slog.HandlerOptions{Level: level}
	out := redacting{w, r}
	if c.Format == "json" {
		return Logger{slog.New(slog.NewJSONHandler(out, opts)), r}
	}
	return Logger{slog.New(slog.NewTextHandler(out, opts)), r}
}

// redacting is a writer of whole lines; slog's handlers write one line at a time.
type redacting struct {
	w io.Writer
	r *secret.Redactor
}

func (w redacting) Write(line []byte) (int, error) {
	if _, err := w.w.Write(w.r.Redact(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
