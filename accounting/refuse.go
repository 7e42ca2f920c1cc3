package accounting

import "fmt"

func refuse(code, text, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Text: text, Why: fmt.Sprintf(format, args...)}
}
