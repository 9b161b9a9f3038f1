-- SPDX-License-Identifier: MIT
--- Datasets and batches.
-- @module perilune.data
local dataset = require "perilune.data.dataset"
local mnist = require "perilune.data.mnist"
local csv = require "perilune.data.csv"
local DataLoader = require "perilune.data.loader"
local sampler = require "perilune.data.sampler"

local seal = require("perilune.surface").seal
local data = {
  Dataset = dataset.Dataset,
  TensorDataset = dataset.TensorDataset,
  Subset = dataset.Subset,
  ConcatDataset = dataset.ConcatDataset,
  StackDataset = dataset.StackDataset,
  MapDataset = dataset.MapDataset,
  Standardizer = require("perilune.data.standardizer").Standardizer,
  IterableDataset = dataset.IterableDataset,
  random_split = dataset.random_split,
  chat_template = require("perilune.data.chat").chat_template,
  cifar10 = require("perilune.data.cifar").cifar10,
  csv = csv.csv,
  image_folder = require("perilune.data.folder").image_folder,
  text = require("perilune.data.text").text,
  tokenizer = require("perilune.data.tokenizer").tokenizer,
  train_bpe = require("perilune.data.tokenizer").train_bpe,
  transforms = seal((require "perilune.data.transforms"), nil, "transforms."),
  DataLoader = DataLoader,
  SequentialSampler = sampler.SequentialSampler,
  RandomSampler = sampler.RandomSampler,
  WeightedSampler = sampler.WeightedSampler,
  WeightedRandomSampler = sampler.WeightedSampler, -- PyTorch's name
  BatchSampler = sampler.BatchSampler,
  DistributedSampler = require("perilune.data.distributed").DistributedSampler,
  default_collate = DataLoader.default_collate,
  fashion_mnist = mnist.fashion_mnist,
  mnist = mnist.mnist,
}
return seal(data, nil, "data.")
