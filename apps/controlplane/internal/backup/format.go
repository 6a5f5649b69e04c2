// Package backup reads and writes backups of the control plane's database.
//
// A backup is lines of JSON, compressed by gzip and encrypted by age if there are recipients:
//
//	{"format":"windlass-backup","version":1,"schema":63,"program":"1.4.0","taken":"2026-11-29T10:00:00Z"}
//	{"table":"apps","columns":["id","name"],"binary":[false,true]}
//	["app_1",{"base64":"AAE="}]
//	{"end":{"rows":1,"tables":1,"sha256":"..."}}
//
// sha256 is the checksum of all lines before the last one. A backup without its last line is truncated.
package backup

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"filippo.io/age"
)

// Format and FormatVersion begin every backup.
const (
	Format        = "windlass-backup"
	FormatVersion = 1
)

// Header describes a backup: its format, its database's schema, and the program that took it.
type Header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Schema is the last migration of the database.
	Schema int64 `json:"schema"`
	// Program is the version of the program that took the backup.
	Program string    `json:"program"`
	Taken   time.Time `json:"taken"`
}

// Table is the line that precedes the rows of a table.
type Table struct {
	Name    string   `json:"table"`
	Columns []string `json:"columns"`
	// Binary has one element for each column, which is true if the values are bytes instead of text.
	Binary []bool `json:"binary"`
}

// Totals is the last line of a backup.
type Totals struct {
	Rows   int64  `json:"rows"`
	Tables int    `json:"tables"`
	SHA256 string `json:"sha256"`
}

type end struct {
	End *Totals `json:"end"`
}

// bytesValue is a value of a binary column.
type bytesValue struct {
	Base64 []byte `json:"base64"`
}

// ErrDamaged means that a backup is truncated or was changed.
var ErrDamaged = errors.New("the backup is damaged")

// Writer writes a backup.
type Writer struct {
	out *bufio.Writer
	// closers are closed by Close, the last one first.
	closers []io.Closer
	sum     hash.Hash
	table   Table
	totals  Totals
}

// NewWriter writes h to out, encrypted for recipients if there are any. The caller must call Close.
func NewWriter(out io.Writer, h Header, recipients ...age.Recipient) (*Writer, error) {
	w := &Writer{sum: sha256.New()}
	if len(recipients) > 0 {
		sealed, err := age.Encrypt(out, recipients...)
		if err != nil {
			return nil, fmt.Errorf("encrypt: %w", err)
		}
		w.closers, out = append(w.closers, sealed), sealed
	}
	packed := gzip.NewWriter(out)
	w.closers = append(w.closers, packed)
	w.out = bufio.NewWriterSize(packed, 1<<16)
	h.Format, h.Version = Format, FormatVersion
	return w, w.writeLine(h)
}

// writeLine writes a line of JSON, and adds it to the checksum.
func (w *Writer) writeLine(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	w.sum.Write(b)
	_, err = w.out.Write(b)
	return err
}

// Begin begins a table. Rows belong to this table until the next call of Begin.
func (w *Writer) Begin(t Table) error {
	w.table = t
	w.totals.Tables++
	return w.writeLine(t)
}

// Row writes a row of the current table. The values are as the database server returned them. A nil value is NULL.
func (w *Writer) Row(values [][]byte) error {
	if len(values) != len(w.table.Columns) {
		return fmt.Errorf("table %s: a row of %d values for %d columns", w.table.Name, len(values), len(w.table.Columns))
	}
	row := make([]any, len(values))
	for i, v := range values {
		switch {
		case v == nil:
		case w.table.Binary[i]:
			row[i] = bytesValue{v}
		default:
			row[i] = string(v)
		}
	}
	w.totals.Rows++
	return w.writeLine(row)
}

// Close writes the last line. A backup without it counts as truncated. Close does not close the writer of NewWriter.
func (w *Writer) Close() (Totals, error) {
	w.totals.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	err := w.writeLine(end{&w.totals})
	if err == nil {
		err = w.out.Flush()
	}
	for i := len(w.closers) - 1; i >= 0 && err == nil; i-- {
		err = w.closers[i].Close()
	}
	return w.totals, err
}

// Reader reads a backup.
type Reader struct {
	Header Header

	in     *bufio.Reader
	sum    hash.Hash
	table  Table
	totals Totals
	ended  bool
}

// ageMagic is the first text of every file that age encrypts.
const ageMagic = "age-encryption.org/"

// NewReader reads the header of a backup, which it decrypts if it is encrypted.
func NewReader(in io.Reader, identities ...age.Identity) (*Reader, error) {
	buffered := bufio.NewReader(in)
	var from io.Reader = buffered
	magic, err := buffered.Peek(len(ageMagic))
	if len(magic) == 0 {
		return nil, fmt.Errorf("%w: it is empty (%w)", ErrDamaged, err)
	}
	if string(magic) == ageMagic {
		if len(identities) == 0 {
			return nil, errors.New("the backup is encrypted: use --identity-file with the file of its private key")
		}
		opened, err := age.Decrypt(buffered, identities...)
		if err != nil {
			return nil, fmt.Errorf("decrypt: %w", err)
		}
		from = opened
	}
	unpacked, err := gzip.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("this is not a Windlass backup: %w", err)
	}
	r := &Reader{in: bufio.NewReaderSize(unpacked, 1<<16), sum: sha256.New()}
	line, err := r.readLine()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &r.Header); err != nil || r.Header.Format != Format {
		return nil, errors.New("this is not a Windlass backup")
	}
	if r.Header.Version > FormatVersion {
		return nil, fmt.Errorf("the backup has format %d, but this program only reads formats up to %d: use version %s of the program or later", r.Header.Version, FormatVersion, r.Header.Program)
	}
	r.sum.Write(line)
	return r, nil
}

func (r *Reader) readLine() ([]byte, error) {
	b, err := r.in.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("%w: it ends before its last line (%w)", ErrDamaged, err)
	}
	return b, nil
}

// Row is a row of a table.
type Row struct {
	Table *Table
	// Values are nil, string or []byte.
	Values []any
}

// Next returns the next row. After the last row it returns io.EOF if the backup is complete, or else ErrDamaged.
func (r *Reader) Next() (Row, error) {
	for {
		if r.ended {
			return Row{}, io.EOF
		}
		line, err := r.readLine()
		if err != nil {
			return Row{}, err
		}
		if line[0] == '[' {
			r.sum.Write(line)
			return r.parseRow(line)
		}
		var head struct {
			Table
			end
		}
		if err := json.Unmarshal(line, &head); err != nil {
			return Row{}, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if head.End != nil {
			return Row{}, r.verifyTotals(*head.End)
		}
		if head.Name == "" || len(head.Columns) == 0 || len(head.Binary) != len(head.Columns) {
			return Row{}, fmt.Errorf("%w: a table without a name or columns", ErrDamaged)
		}
		r.sum.Write(line)
		r.table = head.Table
		r.totals.Tables++
	}
}

// verifyTotals returns io.EOF if the backup is complete and unchanged.
func (r *Reader) verifyTotals(want Totals) error {
	r.totals.SHA256 = hex.EncodeToString(r.sum.Sum(nil))
	if r.totals != want {
		return fmt.Errorf("%w: its checksum, tables or rows differ from its last line", ErrDamaged)
	}
	// gzip and age only check their ends when the input is read to its end.
	n, err := io.Copy(io.Discard, r.in)
	if err != nil {
		return fmt.Errorf("%w: after its last line: %w", ErrDamaged, err)
	}
	if n > 0 {
		return fmt.Errorf("%w: there are %d bytes after its last line", ErrDamaged, n)
	}
	r.ended = true
	return io.EOF
}

func (r *Reader) parseRow(line []byte) (Row, error) {
	var cells []json.RawMessage
	if err := json.Unmarshal(line, &cells); err != nil {
		return Row{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if len(cells) != len(r.table.Columns) {
		return Row{}, fmt.Errorf("%w: a row of %d values for %d columns of table %q", ErrDamaged, len(cells), len(r.table.Columns), r.table.Name)
	}
	table := r.table
	row := Row{Table: &table, Values: make([]any, len(cells))}
	for i, c := range cells {
		var err error
		switch {
		case string(c) == "null":
		case table.Binary[i]:
			var v bytesValue
			err = json.Unmarshal(c, &v)
			if v.Base64 == nil {
				v.Base64 = []byte{}
			}
			row.Values[i] = v.Base64
		default:
			var s string
			err = json.Unmarshal(c, &s)
			row.Values[i] = s
		}
		if err != nil {
			return Row{}, fmt.Errorf("%w: column %s of table %s: %w", ErrDamaged, table.Columns[i], table.Name, err)
		}
	}
	r.totals.Rows++
	return row, nil
}

// Totals returns the numbers of tables and rows that were read so far. SHA256 is empty before the last line was read.
func (r *Reader) Totals() Totals { return r.totals }

// Verify reads a backup to its end. It returns ErrDamaged if the backup is truncated or was changed.
func Verify(r *Reader) (Totals, error) {
	for {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			return r.totals, nil
		} else if err != nil {
			return r.totals, err
		}
	}
}
