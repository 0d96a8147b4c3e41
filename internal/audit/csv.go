package audit

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Exporter writes rows as NDJSON or CSV.
type Exporter struct {
	json *json.Encoder
	csv  *csv.Writer
}

// NewExporter writes to w as "ndjson" or "csv"; ok is false for another word.
func NewExporter(w io.Writer, format string) (x *Exporter, ok bool) {
	switch format {
	case "ndjson":
		j := json.NewEncoder(w)
		j.SetEscapeHTML(false)
		return &Exporter{json: j}, true
	case "csv":
		return &Exporter{csv: csv.NewWriter(w)}, true
	}
	return nil, false
}

// Begin writes the heading of a CSV.
func (x *Exporter) Begin() error {
	if x.csv == nil {
		return nil
	}
	names := strings.Split(columns, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return x.csv.Write(names)
}

// Row writes one row.
func (x *Exporter) Row(e *Event) error {
	if x.csv == nil {
		return x.json.Encode(e)
	}
	cells := make([]string, 0, columnCount)
	for _, v := range e.values(make([]any, 0, columnCount), e.ArgsBody, e.ResultBody) {
		text, isText := v.(string)
		if !isText {
			text = fmt.Sprint(v)
		}
		// Arguments and results are foreign text, and a spreadsheet runs what looks like a formula.
		if text != "" && strings.IndexByte("=+-@\t\r", text[0]) >= 0 {
			text = "'" + text
		}
		cells = append(cells, text)
	}
	return x.csv.Write(cells)
}

// Flush writes what is buffered.
func (x *Exporter) Flush() error {
	if x.csv == nil {
		return nil
	}
	x.csv.Flush()
	return x.csv.Error()
}
