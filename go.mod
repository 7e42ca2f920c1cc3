module github.com/tensorgrid/tensorgrid

go 1.26
