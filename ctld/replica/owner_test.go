package replica

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFolderOfAnother: a replica refuses the folder of another one, which knows neither what it has
// acknowledged nor whom it has voted for, and leaves it as it is.
func TestFolderOfAnother(t *testing.T) {
	dir := t.TempDir()
	if err := checkOwner(dir, "c1"); err != nil {
		t.Fatalf("an empty folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile+".new"), []byte("left by a cra"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := markOwner(dir, "c1"); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(dir, "c1"); err != nil {
		t.Errorf("the replica's own folder: %v", err)
	}
	err := checkOwner(dir, "c2")
	if err == nil || !strings.Contains(err.Error(), `is that of controller "c1", not of c2`) {
		t.Errorf("c1's folder for c2: %v", err)
	}
	if err := markOwner(dir, "c2"); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(dir, "c1"); err != nil {
		t.Errorf("the name was written over: %v", err)
	}
}
